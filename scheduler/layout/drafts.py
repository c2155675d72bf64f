"""Several canvases of one request, each in a slot of its own: drafts of its canvas, or the branches of an ensemble.

Rows write keys and values in place. So a draft's page table has private pages where its row writes, and the request's
own pages before and after them. Of a page that a row fills only in part, the rest is copied first.
"""

from __future__ import annotations

from dataclasses import replace

from ..contract import Ints, Placement, Row, Span
from ..decoding.cache import ComputeRange
from ..decoding.commit.base import EVERYTHING, REPORT_ALL
from ..decoding.commit.shared.speculation import Turn
from .packed import Holding, PackedLayout, RowSource, StepInputs, host_tokens, make_row


class DraftLayout:
    """The row of all lanes, and a row like it for each draft of the request's host commit rule."""

    known = EVERYTHING

    def __init__(self, holding: Holding, source: RowSource, page_size: int) -> None:
        slot, *self._slots = holding.slots
        count = -(-source.request.length // page_size)
        self._source, self._page_size = source, page_size
        self._pages, spare = holding.pages[:count], holding.pages[count:]
        each = len(spare) // max(1, len(self._slots))
        self._private = [spare[at : at + each] for at in range(0, each * len(self._slots), each or 1)]
        self._canvas = PackedLayout(Holding((slot,), self._pages), source, page_size)
        self.placements = list(self._canvas.placements)

    def rows(self, window: ComputeRange, inputs: StepInputs) -> tuple[Row, ...]:
        source, host_rule = self._source, self._source.host_rule
        (own,) = self._canvas.rows(window, inputs)
        # A plan may not have taken the last rows: then their placements are replaced.
        self.placements[:] = [placement for placement in self.placements if placement.slot == own.slot]
        rows = [own]
        drafts = () if host_rule is None or not window.drives else host_rule.drafts
        for slot, private, draft in zip(self._slots, self._private, drafts, strict=False):
            self.placements.append(self._place(slot, private, own, draft))
            positions = (own.start, own.end, own.visible)
            rows.append(make_row(source, inputs, slot, positions, [*own.spans], draft))
        return tuple(rows)

    def follow(self) -> None:
        pass

    def _place(self, slot: int, private: tuple[int, ...], own: Row, draft: Ints) -> Placement:
        size, pages = self._page_size, self._pages
        first, after = own.start // size, -(-own.end // size)
        table = (*pages[:first], *private[: after - first], *pages[after:])
        partial = {first} if own.start % size else set()
        if own.end % size and own.visible > own.end:
            partial.add(after - 1)
        tokens = host_tokens(self._source, 0, self._source.request.length, draft)
        return Placement(slot, tokens, table, tuple((pages[at], table[at]) for at in sorted(partial)))


class EnsembleLayout:
    """The branches of an ensemble, each with pages of its own, but for those of the prompt if they share it."""

    known = EVERYTHING

    def __init__(self, holding: Holding, source: RowSource, page_size: int) -> None:
        """Raises `TypeError` if the decoder has no ensemble."""
        ensemble = None if source.host_rule is None else source.host_rule.ensemble
        if ensemble is None:
            raise TypeError(f"decoder {source.request.decoder.name!r} has one canvas")
        count = -(-source.request.length // page_size)
        self._slots, self._source, self._ensemble = holding.slots, source, ensemble
        self._shared = source.request.shared_pages(source.tree.pattern, page_size)
        shared, private, own = holding.pages[: self._shared], holding.pages[self._shared :], count - self._shared
        self._pages = [(*shared, *private[at : at + own]) for at in range(0, own * len(holding.slots), own)]
        ensemble.open(source.tree.canvas, source.tree.mask_id)
        self.placements = [self._placed(number) for number in range(len(holding.slots))]

    def rows(self, window: ComputeRange, inputs: StepInputs) -> tuple[Row, ...]:
        return tuple(self._row(turn, inputs) for turn in self._ensemble.turns)

    def follow(self) -> None:
        for origin, target in self._ensemble.copied:
            private = slice(self._shared, None)
            copied = tuple(zip(self._pages[origin][private], self._pages[target][private], strict=True))
            self.placements.append(replace(self._placed(target), copied=copied))
        self._ensemble.copied.clear()

    def _placed(self, number: int) -> Placement:
        """Its rows bring their tokens along. No one reads its canvas elsewhere."""
        return Placement(self._slots[number], self._source.request.prompt, self._pages[number])

    def _row(self, turn: Turn, inputs: StepInputs) -> Row:
        source, request = self._source, self._source.request
        span = Span(source.tree.origin + turn.start, source.tree.origin + turn.end, REPORT_ALL)
        start, end = (0, request.length) if turn.whole else (span.start, span.end)
        if request.decoder.shares_prompt and inputs.step:
            start = span.start
        positions = (start, end, request.length)
        return make_row(source, inputs, self._slots[turn.branch], positions, [span], turn.canvas)
