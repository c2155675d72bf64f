"""After dLLM-Cache: prompt and response are recomputed at intervals of their own, a part of the response in between.

A full pass comes every `prompt_every` steps, one over the response every `response_every`. The steps between compute
what has changed, the open positions of live lanes, and the positions nearest to a change, up to `response_share` of the
response. Source: arXiv 2506.06295; maomaocun/dLLM-cache.

It differs because a row computes a position through all layers or not at all. Theirs caches the outputs of attention
and MLP in each layer, compares the values of all response tokens with the cached ones, and computes, layer by layer,
the share that differs most; all others still get logits, of cached outputs. Here the device reports no values, and what
is not computed cannot commit. So nearness to a recent change replaces difference, the lanes' open positions are always
included, and where they are more than the share nothing else is.
"""

from __future__ import annotations

import numpy as np

from ..boundaries import Bools, Longs
from ..params import Params, Range
from .base import ComputeRange, Progress, RequestExtent
from .partial import Partial


class Interval(Partial):
    NAME = "interval"
    DEFAULTS = {"prompt_every": 50, "response_every": 6, "response_share": 0.25}
    PARAMS = {
        "prompt_every": Range(1, 1_000_000, whole=True),
        "response_every": Range(1, 1_000_000, whole=True),
        "response_share": Range(0.0, 1.0),
    }

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._prompt_every, self._response_every = params.integer("prompt_every"), params.integer("response_every")
        self._share = params.number("response_share")
        self._response_steps = 0  # since the response was last computed, that step included

    def compute_range(self, extent: RequestExtent) -> ComputeRange:
        if not self.begun or self._steps >= self._prompt_every:
            return self.full(extent)
        if self._response_steps >= self._response_every:
            return ComputeRange(extent.canvas.origin, extent.end, extent.end, refresh=True)
        return self.some(extent, self._nearest(extent))

    def computed(self, range_: ComputeRange, extent: RequestExtent, progress: Progress) -> None:
        super().computed(range_, extent, progress)
        whole = range_.start <= extent.canvas.origin and range_.end == extent.end and not range_.gaps
        self._response_steps = 1 if whole else self._response_steps + 1

    def _nearest(self, extent: RequestExtent) -> Bools:
        canvas = extent.canvas
        first, last = extent.first - canvas.origin, extent.last - canvas.origin
        changed = self.changed(canvas)
        wanted = changed.copy()
        wanted[first:last] |= canvas.open[first:last]
        spare = int(self._share * len(wanted)) - int(np.count_nonzero(wanted))
        if spare > 0 and changed.any():
            distance = np.where(wanted, len(wanted), _distance(changed))
            wanted[np.argsort(distance, kind="stable")[:spare]] = True
        return wanted


def _distance(marked: Bools) -> Longs:
    """[length] the distance of each position from the nearest one that is `marked`."""
    at, places = np.arange(len(marked)), np.flatnonzero(marked)
    after = np.searchsorted(places, at).clip(max=len(places) - 1)
    before = np.maximum(after - 1, 0)
    nearest: Longs = np.minimum(abs(places[after] - at), abs(places[before] - at))
    return nearest
