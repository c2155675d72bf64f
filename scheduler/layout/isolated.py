"""Refine lanes in rows of their own, which do not see what the generate lane writes.

The paper (arXiv 2606.08411, section 3.4) runs sibling lanes on the keys and values that stood at the fork. Here a
refine lane moves to a slot of its own. Its page table shares the pages before the lane and has private ones from there
on, so neither lane sees what the other writes until the refine lane ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..contract import Placement, Row
from ..decoding.cache import ComputeRange
from ..decoding.commit.base import EVERYTHING
from ..decoding.lane_tree import Lane, Role
from .packed import Holding, RowSource, StepInputs, lane_spans, lookahead_span, make_row


@dataclass(frozen=True, slots=True)
class Branch:
    """A refine lane in a slot of its own. Its rows start at the border of a page and end at `end`, absolute."""

    lane: Lane
    slot: int
    pages: tuple[int, ...]  # private ones
    start: int
    end: int


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
        source, rows = self._source, []
        self.known = EVERYTHING
        if self._branches:  # the request's own slot does not get what they commit until they end
            first = source.tree.origin + self._branches[0].lane.start
            self.known = first if window.refresh else min(first, window.start)
        if window.drives:
            for branch in self._branches:
                spans = lane_spans(source, [branch.lane], branch.start)
                rows.append(make_row(source, inputs, branch.slot, (branch.start, branch.end, branch.end), spans))
        lane = source.tree.live[-1]
        if lane.role is Role.GENERATE and window.drives:
            if self._branches and not window.refresh:
                window = window._replace(start=source.tree.origin + lane.start)
            spans = [*lane_spans(source, [lane], window.start), *lookahead_span(source, window.end)]
            rows.append(make_row(source, inputs, self._slot, window[:3], spans))
        elif window.refresh or not window.drives:
            rows.append(make_row(source, inputs, self._slot, window[:3], []))
        return tuple(rows)

    def follow(self) -> None:
        request, tree = self._source.request, self._source.tree
        ended = [branch for branch in self._branches if branch.lane not in tree.live]
        for branch in ended:
            self._branches.remove(branch)
            self._slots.append(branch.slot)
            self._spare += branch.pages
        if ended:  # the generate lane gets what they committed
            tokens = np.concatenate((request.prompt, tree.canvas))
            self.placements.append(Placement(self._slot, tokens, self._pages))
        known = {branch.lane.id for branch in self._branches}
        for lane in tree.live:
            if lane.role is Role.REFINE and lane.id not in known:
                self._branch(lane)

    def _branch(self, lane: Lane) -> None:
        request, tree, size = self._source.request, self._source.tree, self._page_size
        shared = (tree.origin + lane.start - tree.pattern.logit_shift) // size
        length = min(lane.end + (request.decoder.lookahead or 0), len(tree.canvas))
        end = tree.origin + length
        count = -(-end // size) - shared
        pages, self._spare = tuple(self._spare[:count]), self._spare[count:]
        branch = Branch(lane, self._slots.pop(), pages, shared * size, end)
        self._branches.append(branch)
        tokens = np.concatenate((request.prompt, tree.canvas[:length]))
        self.placements.append(Placement(branch.slot, tokens, (*self._pages[:shared], *pages)))
