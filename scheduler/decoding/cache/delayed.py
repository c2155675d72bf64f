"""dKV-Cache: a token's keys and values are kept from the step after the one that committed it.

A token moves most when it commits, so it is computed once more with its final token. A step computes all positions that
were open when the last one began; after every `reload_every` steps, and when a block starts, comes a full pass. Source:
arXiv 2505.15781; horseee/dKV-Cache. It differs in that lone cached positions between computed ones are computed too
(`partial.BRIDGE`). With `reload_every` 1 it is no cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from ..params import Params, Range, Values
from .base import ComputeRange, Progress, RequestExtent
from .partial import Partial

NONE = -1


class Delayed(Partial):
    DEFAULTS: Mapping[str, object] = {"reload_every": 8}
    PARAMS: Mapping[str, Values] = {"reload_every": Range(1, 1_000_000, whole=True)}

    def __init__(self, reload_every: int) -> None:
        super().__init__()
        self._reload_every = reload_every
        self._block = NONE

    @classmethod
    def of(cls, knobs: Params) -> Self:
        return cls(knobs.integer("reload_every"))

    def compute_range(self, reach: RequestExtent) -> ComputeRange:
        if not self.begun or reach.first != self._block or self._steps >= self._reload_every:
            return self.full(reach)
        return self.part(reach, reach.canvas.open)

    def computed(self, window: ComputeRange, reach: RequestExtent, progress: Progress) -> None:
        super().computed(window, reach, progress)
        self._block = reach.first
