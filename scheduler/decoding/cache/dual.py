"""Fast-dLLM's dual cache: a full pass when a block starts, then the block alone, seeing stale keys on both sides.

Source: arXiv 2505.22618, section 3.2.
"""

from __future__ import annotations

from .base import Blind, ComputeRange, Progress, RequestExtent
from .prefix import Prefix


class Dual(Blind):
    keeps_prompt = False

    def __init__(self) -> None:
        self._prefix = Prefix()

    def compute_range(self, reach: RequestExtent) -> ComputeRange:
        return (
            self._prefix.compute_range(reach)
            if self._prefix.due(reach)
            else ComputeRange(reach.first, reach.last, reach.end)
        )

    def computed(self, window: ComputeRange, reach: RequestExtent, progress: Progress) -> None:
        self._prefix.computed(window, reach, progress)
