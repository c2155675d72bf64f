"""Window-Diffusion's cache: a step computes the first open positions alone, and sees a window of what lies behind them.

A cycle of `cycle` steps begins with a full pass. Behind it a step computes the first `active_tokens` open positions and
the tokens that have committed in the cycle, those of the full pass once. It sees what is decoded and the first
`window_tokens` open positions there were when the full pass was over. Source: vhicrgit/Window-Diffusion.

It differs in what it sees between decoded tokens far ahead and the window, if the full pass has committed any: here a
row sees all positions up to one, so masks between them are seen as that pass left them. With a `cycle` of 1 it is no
cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from ..boundaries import Bools
from ..params import Params, Range, Values
from .base import ComputeRange, Progress, RequestExtent
from .partial import Partial, is_full


class Sliding(Partial):
    DEFAULTS: Mapping[str, object] = {"cycle": 32, "window_tokens": 64, "active_tokens": 16}
    PARAMS: Mapping[str, Values] = {
        "cycle": Range(1, 1_000_000, whole=True),
        "window_tokens": Range(1, 1_000_000, whole=True),
        "active_tokens": Range(1, 4096, whole=True),
    }

    def __init__(self, cycle: int, window: int, active: int) -> None:
        super().__init__()
        self._cycle, self._window, self._active = cycle, window, active
        self._open: Bools | None = None  # [length] where masks were behind the cycle's full pass

    @classmethod
    def of(cls, knobs: Params) -> Self:
        return cls(knobs.integer("cycle"), knobs.integer("window_tokens"), knobs.integer("active_tokens"))

    def compute_range(self, reach: RequestExtent) -> ComputeRange:
        if not self.begun or self._steps >= self._cycle:
            return self.full(reach)
        canvas = reach.canvas
        began = canvas.open if self._open is None else self._open
        wanted = began & ~canvas.open
        wanted[np.flatnonzero(canvas.open)[: self._active]] = True
        return self.part(reach, wanted, self._visible(reach, began))

    def computed(self, window: ComputeRange, reach: RequestExtent, progress: Progress) -> None:
        super().computed(window, reach, progress)
        if is_full(window, reach):
            self._open = None
        elif self._open is None:
            self._open = reach.canvas.open

    def _visible(self, reach: RequestExtent, began: Bools) -> int:
        """The end of the window, or of what is decoded."""
        canvas = reach.canvas
        if reach.end > canvas.origin + len(began):  # there is a suffix
            return reach.end
        decoded = np.flatnonzero(~canvas.open)
        last = max(np.flatnonzero(began)[: self._window].max(initial=0), decoded.max(initial=0))
        return min(canvas.origin + int(last) + 1, reach.end)
