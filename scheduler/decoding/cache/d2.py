"""d2Cache: a step computes the open positions that are likeliest to commit soon, and the tokens that just did.

Likeliest are the `candidates` with the highest product of the position's last confidence and its certainty density: the
share of decoded positions around it, weighted by a Gaussian of width `density_width`. Positions of live lanes come
first; positions after the block that contains the last of so many open ones do not count. All others stay as they were
last computed. Source: arXiv 2509.23094; Kamichanw/d2Cache.

Three things differ. Theirs recomputes in each step the tenth of the tokens to which most attention flows (rollout); no
kernel here forms attention weights, so this is left out, and prompts keep the keys of the first pass. It also ranks
what commits by the same density; here the commit rule is unchanged. And after the lanes, where nothing is projected, no
confidence is known, and density alone decides.
"""

from __future__ import annotations

import numpy as np

from ...contract import Doubles
from ..boundaries import Bools
from ..params import Params, Range
from .base import ComputeRange, Progress, RequestExtent, StepConfidence
from .partial import Partial

RADIUS = 4  # widths of the Gaussian beyond which nothing counts


class D2(Partial):
    NAME = "d2"
    DEFAULTS = {"candidates": 32, "density_width": 10.0}
    PARAMS = {"candidates": Range(1, 4096, whole=True), "density_width": Range(0.1, 1000.0)}

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._candidates, self._width = params.integer("candidates"), params.number("density_width")
        self._observed: StepConfidence | None = None  # of the step in flight
        self._confidence: Doubles = np.zeros(0)  # [length] the last one, 1 where there was none

    def compute_range(self, extent: RequestExtent) -> ComputeRange:
        return self.some(extent, self._likeliest(extent)) if self.begun else self.full(extent)

    def observe(self, confidence: StepConfidence) -> None:
        self._observed = confidence

    def computed(self, range_: ComputeRange, extent: RequestExtent, progress: Progress) -> None:
        super().computed(range_, extent, progress)
        if not len(self._confidence):
            self._confidence = np.ones(len(extent.canvas.tokens))
        if self._observed is not None:
            self._confidence[self._observed.positions - extent.canvas.origin] = self._observed.confidence
            self._observed = None

    def _likeliest(self, extent: RequestExtent) -> Bools:
        canvas = extent.canvas
        open_ = canvas.open
        first, last = extent.first - canvas.origin, extent.last - canvas.origin
        score = self._confidence * density(~open_, self._width)
        score[first:last] += score.max()
        among = first + np.flatnonzero(open_[first:])
        if len(among) > self._candidates:  # up to the end of the block that contains the last of so many
            size = last - first
            among = among[among < first + -(-(among[self._candidates - 1] + 1 - first) // size) * size]
        best = among[np.argsort(-score[among], kind="stable")[: self._candidates]]
        chosen: Bools = np.zeros(len(open_), np.bool_)
        chosen[best] = True
        return chosen


def density(decoded: Bools, width: float) -> Doubles:
    """[length] the share of decoded positions around each one. Those before the canvas count as decoded, those after it
    as its last position."""
    radius = int(RADIUS * width) + 1
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / width) ** 2)
    around = np.concatenate((np.ones(radius), decoded, np.full(radius, decoded[-1])))
    shares: Doubles = np.convolve(around, weights / weights.sum(), "valid")
    return shares
