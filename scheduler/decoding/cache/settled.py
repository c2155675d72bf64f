"""As `compact`, but each position settles by itself: a step computes the open positions, and those that have committed
since they were last computed.

So a position is computed once with its final token, as in `compact`, which settles from the left on: there a step also
computes what was committed and computed before, if it lies after an open position. Nothing is refreshed.
"""

from __future__ import annotations

from .base import ComputeRange, RequestExtent
from .partial import Partial


class Settled(Partial):
    NAME = "settled"

    @property
    def keeps_prompt(self) -> bool:
        return True

    def compute_range(self, extent: RequestExtent) -> ComputeRange:
        return self.some(extent, extent.canvas.open) if self.begun else self.full(extent)
