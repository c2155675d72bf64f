"""After Elastic-Cache: a step computes the open positions of the lanes, and everything once their output has drifted.

The first step is a full pass. Each later one computes the open positions of live lanes, and the tokens that have
committed since they were last computed; masks after the lanes stay as they were. After each step the confidence of the
proposals at open positions is compared with that of the step before. If the cosine of the two is below
`least_similarity`, the next step is a full pass. Above 1 it is no cache.

After arXiv 2510.14973, of which only a summary was available. From it: the window of the first open positions, the
masks after it that stay cached, and a full pass that is due to drift instead of a schedule. It differs in what drifts:
the authors compare, layer by layer, the attention to the most attended token, and recompute only the layers after the
first that has drifted. Here no kernel forms attention weights, and a row passes all layers. So confidence takes their
place, the pass comes one step later and goes through all layers, and the limit is of our own.
"""

from __future__ import annotations

import numpy as np

from ...contract import Doubles
from ..params import Params, Range
from .base import ComputeRange, Progress, RequestExtent, StepConfidence
from .partial import Partial


class Elastic(Partial):
    NAME = "elastic"
    DEFAULTS = {"least_similarity": 0.9}
    PARAMS = {"least_similarity": Range(0.0, 2.0)}

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._least = params.number("least_similarity")
        self._observed: StepConfidence | None = None  # of the step in flight
        self._confidence: Doubles = np.zeros(0)  # [length] of the last step's proposals at open positions, or NaN
        self._drifted = False

    def compute_range(self, extent: RequestExtent) -> ComputeRange:
        if not self.begun or self._drifted:
            return self.full(extent)
        canvas = extent.canvas
        wanted = canvas.open
        wanted[: extent.first - canvas.origin] = wanted[extent.last - canvas.origin :] = False
        return self.some(extent, wanted)

    def observe(self, confidence: StepConfidence) -> None:
        self._observed = confidence

    def computed(self, range_: ComputeRange, extent: RequestExtent, progress: Progress) -> None:
        super().computed(range_, extent, progress)
        canvas, before = extent.canvas, self._confidence
        now = np.full(len(canvas.tokens), np.nan)
        if self._observed is not None:
            now[self._observed.positions - canvas.origin] = self._observed.confidence
            now[~canvas.open] = np.nan
            self._observed = None
        self._drifted = (similarity(before, now) if len(before) else 1.0) < self._least
        self._confidence = now


def similarity(one: Doubles, other: Doubles) -> float:
    """The cosine of two vectors [n], without the places where either is NaN; 1 without any place."""
    both = ~np.isnan(one) & ~np.isnan(other)
    first, second = one[both], other[both]
    size = np.sqrt(np.sum(first * first) * np.sum(second * second))
    return float(np.sum(first * second) / size) if size else 1.0
