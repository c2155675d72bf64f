"""Window-Diffusion's cache: a step computes only the first open positions, and sees a window of those after them.

A cycle of `cycle` steps begins with a full pass. Each later step computes the first `active_tokens` open positions and
the tokens that have committed in the cycle, those of the full pass once. It sees decoded positions and the first
`window_tokens` positions that were open after the full pass. Source: vhicrgit/Window-Diffusion.

One thing differs, if the full pass has committed tokens far ahead: a row here sees all positions up to a limit, so
masks between such tokens and the window are visible as that pass left them. With a `cycle` of 1 it is no cache.
"""

from __future__ import annotations

import numpy as np

from ..boundaries import Bools
from ..params import Params, Range
from .base import ComputeRange, Progress, RequestExtent
from .partial import Partial, is_full


class Sliding(Partial):
    NAME = "window"
    DEFAULTS = {"cycle": 32, "window_tokens": 64, "active_tokens": 16}
    PARAMS = {
        "cycle": Range(1, 1_000_000, whole=True),
        "window_tokens": Range(1, 1_000_000, whole=True),
        "active_tokens": Range(1, 4096, whole=True),
    }

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._cycle, self._active = params.integer("cycle"), params.integer("active_tokens")
        self._window_tokens = params.integer("window_tokens")
        self._open: Bools | None = None  # [length] where masks were after the cycle's full pass

    def compute_range(self, extent: RequestExtent) -> ComputeRange:
        if not self.begun or self._steps >= self._cycle:
            return self.full(extent)
        canvas = extent.canvas
        began = canvas.open if self._open is None else self._open
        wanted = began & ~canvas.open
        wanted[np.flatnonzero(canvas.open)[: self._active]] = True
        return self.some(extent, wanted, self._visible(extent, began))

    def computed(self, range_: ComputeRange, extent: RequestExtent, progress: Progress) -> None:
        super().computed(range_, extent, progress)
        if is_full(range_, extent):
            self._open = None
        elif self._open is None:
            self._open = extent.canvas.open

    def _visible(self, extent: RequestExtent, began: Bools) -> int:
        """The end of the window, or of the decoded positions."""
        canvas = extent.canvas
        if extent.end > canvas.origin + len(began):  # there is a suffix
            return extent.end
        decoded = np.flatnonzero(~canvas.open)
        last = max(np.flatnonzero(began)[: self._window_tokens].max(initial=0), decoded.max(initial=0))
        return min(canvas.origin + int(last) + 1, extent.end)
