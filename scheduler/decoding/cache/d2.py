"""d2Cache: a step computes the open positions that are likeliest to commit soon, and the tokens that just did.

Likeliest are the `candidates` with the highest product of the confidence that a step last showed there and of certainty
density, the share of decoded positions around one, weighted by a Gaussian of width `density_width`; those of live lanes
come first, and none counts behind the block in which so many open ones end. All else stays as it was computed last.
Source: arXiv 2509.23094; Kamichanw/d2Cache.

It differs in three ways. Theirs computes anew, in each step, the tenth of the tokens to which most attention flows
(rollout); no kernel here forms attention weights, so this is left out, and prompts keep the keys of the first pass. It
also ranks what commits by the same density; here the commit rule does as it always does. And behind the lanes, where
nothing is projected, no confidence is known, and density alone decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from ...contract import Doubles
from ..boundaries import Bools
from ..params import Params, Range, Values
from .base import ComputeRange, Progress, RequestExtent, StepConfidence
from .partial import Partial

RADIUS = 4  # widths of the Gaussian behind which nothing counts


class D2(Partial):
    DEFAULTS: Mapping[str, object] = {"candidates": 32, "density_width": 10.0}
    PARAMS: Mapping[str, Values] = {
        "candidates": Range(1, 4096, whole=True),
        "density_width": Range(0.1, 1000.0),
    }

    def __init__(self, candidates: int, width: float) -> None:
        super().__init__()
        self._candidates, self._width = candidates, width
        self._shown: StepConfidence | None = None
        self._confidence: Doubles = np.zeros(0)  # [length] what was last shown, 1 where nothing was

    @classmethod
    def of(cls, knobs: Params) -> Self:
        return cls(knobs.integer("candidates"), knobs.number("density_width"))

    def compute_range(self, reach: RequestExtent) -> ComputeRange:
        return self.part(reach, self._likeliest(reach)) if self.begun else self.full(reach)

    def observe(self, shown: StepConfidence) -> None:
        self._shown = shown

    def computed(self, window: ComputeRange, reach: RequestExtent, progress: Progress) -> None:
        super().computed(window, reach, progress)
        if not len(self._confidence):
            self._confidence = np.ones(len(reach.canvas.tokens))
        if self._shown is not None:
            self._confidence[self._shown.positions - reach.canvas.origin] = self._shown.confidence
            self._shown = None

    def _likeliest(self, reach: RequestExtent) -> Bools:
        canvas = reach.canvas
        open_ = canvas.open
        first, last = reach.first - canvas.origin, reach.last - canvas.origin
        score = self._confidence * density(~open_, self._width)
        score[first:last] += score.max()
        among = first + np.flatnonzero(open_[first:])
        if len(among) > self._candidates:  # up to the end of the block in which the last of so many lies
            size = last - first
            among = among[among < first + -(-(among[self._candidates - 1] + 1 - first) // size) * size]
        best = among[np.argsort(-score[among], kind="stable")[: self._candidates]]
        chosen: Bools = np.zeros(len(open_), np.bool_)
        chosen[best] = True
        return chosen


def density(decoded: Bools, width: float) -> Doubles:
    """[length] the share of decoded positions around each one. What lies before the canvas counts as decoded, what lies
    behind as its last position."""
    radius = int(RADIUS * width) + 1
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / width) ** 2)
    around = np.concatenate((np.ones(radius), decoded, np.full(radius, decoded[-1])))
    shares: Doubles = np.convolve(around, weights / weights.sum(), "valid")
    return shares
