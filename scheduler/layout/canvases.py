"""Canvases of random tokens: the text before one, as far as it is still to be encoded, and the canvas in a row each."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..contract import Denoising, DeviceCommitRule, Ints, Measure, Placement, Row, Span
from ..decoding.commit.base import EVERYTHING
from .packed import Holding, RowSource

REPORTS = DeviceCommitRule(sure=0, threshold=math.inf, measure=Measure.ENTROPY)  # commits nothing: the host decides


class CanvasStep(NamedTuple):
    """A canvas before a step of the request: its `tokens` from an absolute position on, after `text` that ends there,
    which is that of the prompt if it is None."""

    step: int
    text_start: int
    start: int
    text: Ints | None
    tokens: Ints
    denoising: Denoising


class CanvasLayout:
    """The rows of one request, and their placements."""

    known = EVERYTHING

    def __init__(self, holding: Holding, source: RowSource) -> None:
        self._slot, self._source = holding.slots[0], source
        self.placements = [Placement(self._slot, source.request.prompt, holding.pages)]

    def encoded(self, start: int, end: int, step: int, text: Ints | None = None) -> Row:
        """The row of text at `[start, end)`: of the prompt, or a finished canvas."""
        return Row(self._slot, start, end, end, (), self._source.request.sampling, step, host_tokens=text)

    def rows(self, canvas: CanvasStep) -> tuple[Row, ...]:
        request, biasing = self._source.request, self._source.biasing
        step, start, end = canvas.step, canvas.start, canvas.start + len(canvas.tokens)
        biases = () if biasing is None else biasing.at(self._source.tree.canvas, 0)
        row = Row(
            self._slot,
            start,
            end,
            end,
            (Span(start, end, REPORTS),),
            request.sampling,
            step,
            biases,
            host_tokens=canvas.tokens,
            denoising=canvas.denoising,
        )
        if canvas.text_start == start:
            return (row,)
        return self.encoded(canvas.text_start, start, step, canvas.text), row
