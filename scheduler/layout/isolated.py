"""Refine lanes in rows of their own, which do not see what the generate lane writes.

The paper (arXiv 2606.08411, section 3.4) runs sibling lanes on the keys and values that stood at the fork. Here a
refine lane has a slot of its own. Its page table shares the whole pages before the lane, which nothing writes before
the next refresh, has a copy of the page in which the lane begins, and private pages from there on. A refresh is one row
of all lanes: it reads the newest tokens of each, and they are isolated again from its keys and values on.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..contract import Placement, Row, Span
from ..decoding.cache import ComputeRange
from ..decoding.commit.base import EVERYTHING
from ..decoding.lane_tree import Lane, Role
from .packed import Holding, RowSource, StepInputs, host_tokens, lane_spans, lookahead_span, make_row


@dataclass(slots=True, eq=False)
class Branch:
    """A refine lane in a slot of its own. Its rows compute the absolute positions `[start, end)`. It must be `placed`
    before its first row, and again after a refresh."""

    lane: Lane
    slot: int
    pages: tuple[int, ...]  # from the one in which `start` is
    start: int
    end: int
    placed: bool = False


class IsolatedLayout:
    def __init__(self, holding: Holding, source: RowSource, page_size: int) -> None:
        prompt, total = source.request.prompt, source.tree.origin + len(source.tree.canvas)
        self._source = source
        self._slot, *self._slots = holding.slots
        own = -(-total // page_size)
        self._pages, self._spare = holding.pages[:own], list(holding.pages[own:])
        self._page_size = page_size
        self._branches: list[Branch] = []
        self.known = EVERYTHING
        self.placements = [Placement(self._slot, prompt, self._pages)]

    def rows(self, window: ComputeRange, inputs: StepInputs) -> tuple[Row, ...]:
        source, branches = self._source, self._branches
        lanes, start, self.known = source.tree.live, window.start, EVERYTHING
        if window.refresh or not window.drives:
            for branch in branches:
                branch.placed = False  # its prefix is about to change
            branches = []
        elif branches:  # the request's own pages do not get what they compute
            origin = source.tree.origin
            self.known = min(origin + branches[0].lane.start, start)
            start, lanes = origin + branches[-1].lane.end, lanes[len(branches) :]
        rows = [self._branch_row(branch, inputs) for branch in branches]
        if lanes:
            spans = lane_spans(source, lanes, start) + lookahead_span(source, window.end) if window.drives else []
            rows.append(self._row(inputs, self._slot, (start, window.end, window.visible), spans))
        return tuple(rows)

    def follow(self) -> None:
        tree = self._source.tree
        for branch in [branch for branch in self._branches if branch.lane not in tree.live]:
            self._branches.remove(branch)
            self._slots.append(branch.slot)
            self._spare += branch.pages
        known = {branch.lane.id for branch in self._branches}
        for lane in tree.live:
            if lane.role is Role.REFINE and lane.id not in known:
                self._branch(lane)

    def _row(self, inputs: StepInputs, slot: int, positions: tuple[int, int, int], spans: list[Span]) -> Row:
        """A row with its tokens: other rows have changed the canvas since the last one of this slot."""
        row = make_row(self._source, inputs, slot, positions, spans)
        return row._replace(host_tokens=host_tokens(self._source, row.start, row.end))

    def _branch_row(self, branch: Branch, inputs: StepInputs) -> Row:
        if not branch.placed:
            self.placements.append(self._placed(branch))
            branch.placed = True
        spans = lane_spans(self._source, [branch.lane], branch.start)
        return self._row(inputs, branch.slot, (branch.start, branch.end, branch.end), spans)

    def _placed(self, branch: Branch) -> Placement:
        """The lane's rows bring their tokens along."""
        shared, within = divmod(branch.start, self._page_size)
        copied = ((self._pages[shared], branch.pages[0]),) if within else ()
        return Placement(branch.slot, self._source.request.prompt, (*self._pages[:shared], *branch.pages), copied)

    def _branch(self, lane: Lane) -> None:
        request, tree, size = self._source.request, self._source.tree, self._page_size
        start = tree.origin + lane.start - tree.pattern.logit_shift
        end = tree.origin + min(lane.end + request.decoder.branch_lookahead, len(tree.canvas))
        count = -(-end // size) - start // size
        pages, self._spare = tuple(self._spare[:count]), self._spare[count:]
        self._branches.append(Branch(lane, self._slots.pop(), pages, start, end))
