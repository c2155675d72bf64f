"""EntropyCache: everything is recomputed after a step that has committed a token whose distribution was wide.

The entropies of the tokens that have just committed show how far cached keys and values have drifted. If the highest is
`entropy_limit` nats or more, the next step is a full pass, as is the first one of a block. Any other computes the open
positions of the lanes and the `recent_tokens` tokens that committed last, whose keys still change; of one step, the
rightmost count as the last. With an `entropy_limit` of 0 it is no cache.

After arXiv 2603.18489, of which only the abstract was available. From it: what is measured, and that a number of recent
tokens is computed. Ours: both numbers, the full pass at the start of a block, and that short gaps are computed, too
(`partial.BRIDGE`). A token that stands in for an end counts as uncertain, one that a grammar has forced as certain.
"""

from __future__ import annotations

import numpy as np

from ...contract import Doubles
from ..boundaries import Longs
from ..params import Params, Range
from .base import Canvas, ComputeRange, Progress, RequestExtent, StepConfidence
from .partial import Partial

NONE = -1
OPEN, GIVEN = 0, -1  # no step has committed a position: it is open, or was never


class EntropyCache(Partial):
    NAME = "entropy"
    DEFAULTS = {"entropy_limit": 0.3, "recent_tokens": 16}
    PARAMS = {"entropy_limit": Range(0.0, 20.0), "recent_tokens": Range(0, 4096, whole=True)}
    reads_entropy = True

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._limit, self._recent = params.number("entropy_limit"), params.integer("recent_tokens")
        self._block, self._step = NONE, 1
        self._commits: Longs | None = None  # [length] the step that has committed each position
        self._observed: StepConfidence | None = None  # of the step in flight
        self._entropy: Doubles = np.zeros(0)  # [length] of the last step's proposals, 0 where there was none

    def compute_range(self, extent: RequestExtent) -> ComputeRange:
        if not self.begun or extent.first != self._block:
            return self.full(extent)
        canvas, commits = extent.canvas, self._history(extent.canvas)
        new = commits == self._step
        if self._entropy[new].max(initial=-np.inf) >= self._limit:
            return self.full(extent)
        wanted = canvas.open
        wanted[: extent.first - canvas.origin] = wanted[extent.last - canvas.origin :] = False
        made = np.flatnonzero(commits > OPEN)
        wanted[made[np.argsort(commits[made], kind="stable")[max(0, len(made) - self._recent) :]]] = True
        return self.ranges(extent, wanted | self.uncomputed)

    def observe(self, confidence: StepConfidence) -> None:
        self._observed = confidence

    def computed(self, range_: ComputeRange, extent: RequestExtent, progress: Progress) -> None:
        super().computed(range_, extent, progress)
        canvas, self._block = extent.canvas, extent.first
        self._commits, self._step = self._history(canvas), self._step + 1
        self._entropy = np.zeros(len(canvas.tokens))
        if self._observed is not None and self._observed.entropy is not None:
            self._entropy[self._observed.positions - canvas.origin] = self._observed.entropy
        self._observed = None

    def _history(self, canvas: Canvas) -> Longs:
        """[length] the step that has committed each position of the canvas; those that are new came in the last one."""
        if self._commits is None:
            return np.where(canvas.open, OPEN, GIVEN)
        return np.where(canvas.open, OPEN, np.where(self._commits == OPEN, self._step, self._commits))
