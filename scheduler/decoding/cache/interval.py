"""After dLLM-Cache: prompt and response are computed anew at intervals of their own, a part of the response in between.

A full pass comes every `prompt_every` steps, one over the response every `response_every`. In the steps between, what
has changed and the open positions of live lanes are computed, and what is nearest to a change, until `response_share`
of the response is.
Source: arXiv 2506.06295; maomaocun/dLLM-cache.

It differs in what an honest row can do. Theirs caches the outputs of attention and MLP in each layer, compares the
values of all response tokens with the cached ones, and computes, layer by layer, the share that differs most; all
others still get logits, of cached outputs. Here a position is computed through all layers or not at all, the device
tells no value vectors, and what is not computed cannot commit. So nearness to what has just changed stands for
difference, the lanes' open positions are always in, and where they are more than the share they are all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from ..boundaries import Bools, Longs
from ..params import Params, Range, Values
from .base import ComputeRange, Progress, RequestExtent
from .partial import Partial


class Interval(Partial):
    DEFAULTS: Mapping[str, object] = {"prompt_every": 50, "response_every": 6, "response_share": 0.25}
    PARAMS: Mapping[str, Values] = {
        "prompt_every": Range(1, 1_000_000, whole=True),
        "response_every": Range(1, 1_000_000, whole=True),
        "response_share": Range(0.0, 1.0),
    }

    def __init__(self, prompt_every: int, response_every: int, share: float) -> None:
        super().__init__()
        self._prompt_every, self._response_every, self._share = prompt_every, response_every, share
        self._response_steps = 0  # since the response was last computed, that step included

    @classmethod
    def of(cls, knobs: Params) -> Self:
        return cls(knobs.integer("prompt_every"), knobs.integer("response_every"), knobs.number("response_share"))

    def compute_range(self, reach: RequestExtent) -> ComputeRange:
        if not self.begun or self._steps >= self._prompt_every:
            return self.full(reach)
        if self._response_steps >= self._response_every:
            return ComputeRange(reach.canvas.origin, reach.end, reach.end, refresh=True)
        return self.part(reach, self._some(reach))

    def computed(self, window: ComputeRange, reach: RequestExtent, progress: Progress) -> None:
        super().computed(window, reach, progress)
        whole = window.start <= reach.canvas.origin and window.end == reach.end and not window.gaps
        self._response_steps = 1 if whole else self._response_steps + 1

    def _some(self, reach: RequestExtent) -> Bools:
        canvas = reach.canvas
        first, last = reach.first - canvas.origin, reach.last - canvas.origin
        changed = self.changed(canvas)
        wanted = changed.copy()
        wanted[first:last] |= canvas.open[first:last]
        spare = int(self._share * len(wanted)) - int(np.count_nonzero(wanted))
        if spare > 0 and changed.any():
            distance = np.where(wanted, len(wanted), _distance(changed))
            wanted[np.argsort(distance, kind="stable")[:spare]] = True
        return wanted


def _distance(marked: Bools) -> Longs:
    """[length] how far each position is from the nearest one that is `marked`."""
    at, places = np.arange(len(marked)), np.flatnonzero(marked)
    behind = np.searchsorted(places, at).clip(max=len(places) - 1)
    before = np.maximum(behind - 1, 0)
    nearest: Longs = np.minimum(abs(places[behind] - at), abs(places[before] - at))
    return nearest
