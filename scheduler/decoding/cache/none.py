"""No cache: every step computes everything, as LLaDA's own sampler does."""

from __future__ import annotations

from .base import CachePolicy, ComputeRange, RequestExtent


class NoCache(CachePolicy):
    NAME = "none"

    def compute_range(self, extent: RequestExtent) -> ComputeRange:
        return ComputeRange(0, extent.end, extent.end)
