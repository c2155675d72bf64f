"""Fast-dLLM's prefix cache: a full pass when a block starts, then the block and everything after it.

Source: arXiv 2505.22618, section 3.2.
"""

from __future__ import annotations

from ..params import Params
from .base import CachePolicy, ComputeRange, Progress, RequestExtent

NONE = -1


class Prefix(CachePolicy):
    NAME = "prefix"

    def __init__(self, params: Params) -> None:
        self._block = NONE

    def compute_range(self, extent: RequestExtent) -> ComputeRange:
        if extent.first != self._block:  # a block starts
            return ComputeRange(0, extent.end, extent.end, refresh=self._block != NONE)
        return ComputeRange(extent.first, self._last(extent), extent.end)

    def _last(self, extent: RequestExtent) -> int:
        """The end of what steps within the block compute."""
        return extent.end

    def computed(self, range_: ComputeRange, extent: RequestExtent, progress: Progress) -> None:
        self._block = extent.first
