"""No cache: every step computes everything, as LLaDA's own sampler does."""

from __future__ import annotations

from .base import Blind, ComputeRange, Progress, RequestExtent


class NoCache(Blind):
    keeps_prompt = False

    def compute_range(self, reach: RequestExtent) -> ComputeRange:
        return ComputeRange(0, reach.end, reach.end)

    def computed(self, window: ComputeRange, reach: RequestExtent, progress: Progress) -> None:
        pass
