"""No cache: every step computes everything, as LLaDA's own sampler does."""

from __future__ import annotations

from .base import Blind, Progress, Reach, Window


class NoCache(Blind):
    keeps_prompt = False

    def window(self, reach: Reach) -> Window:
        return Window(0, reach.end, reach.end)

    def computed(self, window: Window, reach: Reach, progress: Progress) -> None:
        pass
