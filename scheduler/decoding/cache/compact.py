"""AsyncLane's compact cache: a step starts where settled positions end and stops at the look-ahead.

A position settles once a step has computed it with its final token: keys and values of the step that committed it are
those of a mask. A refresh starts at 0; its logits drive that step, so it needs no forward of its own. The unused end of
the canvas is never computed.
"""

from __future__ import annotations

from collections.abc import Callable

from ..params import LANE, Params
from .base import CachePolicy, ComputeRange, Progress, RequestExtent

EVENTS: dict[str, Callable[[Progress], int]] = {
    "lanes": lambda progress: progress.finished,
    "forks": lambda progress: progress.forks,
    "steps": lambda progress: 1,
}


class Compact(CachePolicy):
    """Refreshes after every `refresh_every` events of `refresh_on`, never if 0. Two switches are for ablations: without
    `reuse` a full pass drives no lane and needs a forward of its own; without `settle` a position is cached as soon as
    it is committed, with `lane` once its lane has ended. `refresh_margin` bounds the positions after the last lane that
    a full pass computes."""

    NAME = "compact"  # its parameters are those of the decoder `asynclane`: no other has them

    def __init__(self, params: Params) -> None:
        """A parameter that a decoder does not have is off."""
        self._refresh_every = params.integer("refresh_every") if "refresh_every" in params else 0
        self._count = EVENTS[str(params.get("refresh_on", "lanes"))]
        self._reuse, self._settle = params.get("reuse", True) is True, params.get("settle", True)
        self._margin = params.integer("refresh_margin") if "refresh_margin" in params else None
        self._events = 0
        self._settled: int | None = None  # nothing has been computed

    @property
    def keeps_prompt(self) -> bool:
        return not self._refresh_every

    def compute_range(self, extent: RequestExtent) -> ComputeRange:
        due = 0 < self._refresh_every <= self._events
        if self._settled is None or due:
            end = extent.end if self._margin is None else min(extent.end, extent.last + self._margin)
            return ComputeRange(0, end, end, refresh=self._settled is not None, drives=self._reuse)
        start = extent.first if self._settle == LANE else self._settled
        return ComputeRange(start, extent.end, extent.end)

    def computed(self, range_: ComputeRange, extent: RequestExtent, progress: Progress) -> None:
        if range_.refresh:
            self._events = 0
        if range_.drives:  # a pass for the cache alone must not trigger the next one
            self._events += self._count(progress)
        self._settled = extent.frontier if self._settle is True else progress.frontier
