"""dKV-Cache: a token's keys and values are kept from the step after the one that committed it.

A token's keys change most when it commits, so it is computed once more with its final token. A step computes all
positions that were open when the last one began; after every `reload_every` steps, and when a block starts, comes a
full pass. Source: arXiv 2505.15781; horseee/dKV-Cache. One thing differs: short gaps of cached positions between
computed ones are computed too (`partial.BRIDGE`). With `reload_every` 1 it is no cache.
"""

from __future__ import annotations

from ..params import Params, Range
from .base import ComputeRange, Progress, RequestExtent
from .partial import Partial

NONE = -1


class Delayed(Partial):
    NAME = "delayed"
    DEFAULTS = {"reload_every": 8}
    PARAMS = {"reload_every": Range(1, 1_000_000, whole=True)}

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._reload_every, self._block = params.integer("reload_every"), NONE

    def compute_range(self, extent: RequestExtent) -> ComputeRange:
        if not self.begun or extent.first != self._block or self._steps >= self._reload_every:
            return self.full(extent)
        return self.some(extent, extent.canvas.open)

    def computed(self, range_: ComputeRange, extent: RequestExtent, progress: Progress) -> None:
        super().computed(range_, extent, progress)
        self._block = extent.first
