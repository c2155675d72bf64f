"""Drafts of one request and their checks, by rows of which some are causal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..contract import Ints, Row, RowCopy, Span
from ..decoding.cache import ComputeRange
from ..decoding.commit.base import EVERYTHING
from ..decoding.commit.shared.verification import Verifier
from .packed import NOTHING, Holding, PackedLayout, RowSource, StepInputs, lane_spans, make_row


class VerifiedLayout:
    """A step that drafts has a row of what the cache keeps, one of the block's tokens before its first mask, and one of
    the rest of the block. A step that checks has the draft in the place of these two, up to the end of the span, and
    after it a mask for each position of the span. These masks take the places of what follows the span, which no later
    step reads."""

    known = EVERYTHING

    def __init__(self, holding: Holding, source: RowSource, page_size: int) -> None:
        """Raises `TypeError` if the decoder's rule checks no drafts."""
        verifier = None if source.host_rule is None else source.host_rule.verifier
        if verifier is None:
            raise TypeError(f"decoder {source.request.decoder.name!r} checks no drafts")
        self._slot, self._source, self._verifier = holding.slots[0], source, verifier
        self.placements = PackedLayout(holding, source, page_size).placements

    def rows(self, window: ComputeRange, inputs: StepInputs) -> tuple[Row, ...]:
        verifier: Verifier = self._verifier
        source, tree = self._source, self._source.tree
        if not window.drives:
            return (self._row(inputs, (window.start, window.end), causal=verifier.causal_cache),)
        (lane,) = tree.live
        block, cached = tree.pattern.floor(tree.origin + lane.start), verifier.causal_cache
        if verifier.span is not None:
            start, end = (tree.origin + place for place in verifier.span)
            rows = self._parts(inputs, [(window.start, block, cached), (block, end, True)], verifier.draft)
            return (*rows, self._check(inputs, start, end))
        first = tree.origin + inputs.frontier
        bounds = [(window.start, block, cached), (block, first, verifier.causal_drafts), (first, window.end, False)]
        *before, last = self._parts(inputs, bounds)
        spans = lane_spans(source, [lane], max(last.start, first))
        return (*before, make_row(source, inputs, self._slot, (last.start, last.end, last.visible), spans))

    def follow(self) -> None:
        pass

    def _parts(self, inputs: StepInputs, bounds: list[tuple[int, int, bool]], draft: Ints | None = None) -> list[Row]:
        """Rows without spans of `bounds` (start, end, causal), of which neighbours of a kind are one."""
        rows: list[Row] = []
        for start, end, causal in bounds:
            if start >= end:
                continue
            if rows and rows[-1].causal == causal:
                start = rows.pop().start
            rows.append(self._row(inputs, (start, end), draft, causal))
        return rows

    def _row(self, inputs: StepInputs, bounds: tuple[int, int], draft: Ints | None = None, causal: bool = False) -> Row:
        row = make_row(self._source, inputs, self._slot, (*bounds, bounds[1]), [], draft)
        return row._replace(causal=causal, ranks=None)

    def _check(self, inputs: StepInputs, start: int, end: int) -> Row:
        """The masks of the span from `start` to `end`."""
        source, size, draft = self._source, end - start, self._verifier.draft
        given = draft[start - source.tree.origin : end - source.tree.origin]
        own = make_row(source, inputs, self._slot, (start, end, end), [Span(start, end, NOTHING)])
        return own._replace(
            start=end,
            end=end + size,
            visible=end + size,
            spans=(Span(end, end + size, NOTHING),),
            biases=tuple([replace(bias, start=bias.start + size, end=bias.end + size) for bias in own.biases]),
            host_tokens=np.full(size, source.tree.mask_id, np.int32),
            copy=RowCopy(rope_offset=size, mask_offset=0),
            scored=given.copy(),
            causal=True,
        )
