"""Fast-dLLM's prefix cache: a full pass when a block starts, then the block and all that lies behind it.

Source: arXiv 2505.22618, section 3.2.
"""

from __future__ import annotations

from .base import Blind, ComputeRange, Progress, RequestExtent

NOTHING = -1


class Prefix(Blind):
    keeps_prompt = False

    def __init__(self) -> None:
        self._block = NOTHING

    def due(self, reach: RequestExtent) -> bool:
        """Whether a block starts."""
        return reach.first != self._block

    def compute_range(self, reach: RequestExtent) -> ComputeRange:
        if self.due(reach):
            return ComputeRange(0, reach.end, reach.end, refresh=self._block != NOTHING)
        return ComputeRange(reach.first, reach.end, reach.end)

    def computed(self, window: ComputeRange, reach: RequestExtent, progress: Progress) -> None:
        self._block = reach.first
