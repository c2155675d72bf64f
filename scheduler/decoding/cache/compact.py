"""AsyncLane's compact cache: a step starts where settled positions end and stops at the look-ahead.

A position settles once a step has computed it with its final token: keys and values of the step that committed it
are those of a mask. A refresh starts at 0; its logits drive that step, so it is no extra call. The unused tail of the
canvas is never computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .base import Blind, ComputeRange, Progress, RequestExtent

EVENTS: dict[str, Callable[[Progress], int]] = {
    "lanes": lambda progress: progress.finished,
    "forks": lambda progress: progress.forks,
    "steps": lambda progress: 1,
}


@dataclass(slots=True)
class Compact(Blind):
    """Refreshes after every so many `refresh_on` events, 0: never. Two switches are for ablations: without `reuse`
    a full pass drives no lane and costs a call of its own; without `settle` a position is cached as soon as it is
    committed."""

    refresh_every: int
    refresh_on: str = "lanes"
    reuse: bool = True
    settle: bool = True
    _events: int = 0
    _settled: int | None = None  # nothing has been computed

    @property
    def keeps_prompt(self) -> bool:
        return not self.refresh_every

    def compute_range(self, reach: RequestExtent) -> ComputeRange:
        due = 0 < self.refresh_every <= self._events
        if self._settled is None or due:
            return ComputeRange(0, reach.end, reach.end, refresh=self._settled is not None, drives=self.reuse)
        return ComputeRange(self._settled, reach.end, reach.end)

    def computed(self, window: ComputeRange, reach: RequestExtent, progress: Progress) -> None:
        if window.refresh:
            self._events = 0
        if window.drives:  # a pass for the cache alone must not bring on the next one
            self._events += EVENTS[self.refresh_on](progress)
        self._settled = reach.frontier if self.settle else progress.frontier
