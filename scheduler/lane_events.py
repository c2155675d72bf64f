"""What one step did to the lanes of a request, for those who watch: streams with lanes, traces, the terminal view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from .contract import Ints
from .decoding.lane_tree import Lane, LaneTree, Role


class Fate(Enum):
    """What became of a lane in a step."""

    LIVE = "live"
    FORKED = "forked"  # it goes on as the refine lane of its first part
    FINISHED = "finished"
    CANCELLED = "cancelled"  # the answer ends before it


@dataclass(frozen=True, slots=True)
class LaneChange:
    """A lane as the step found it, `[start, end)` in canvas positions, and its fate. `tokens` [end - start] stand there
    after the step, the mask id at open positions."""

    id: int
    parent: int | None
    role: Role
    start: int
    end: int
    fate: Fate
    tokens: Ints


@dataclass(frozen=True, slots=True)
class LaneEvents:
    """Step `step` of a request computed `[start, end)`, in canvas positions: the prompt is below 0.

    It committed `tokens` [n] at `positions` [n]; those outside of all lanes are drafts.
    """

    step: int
    start: int
    end: int
    refresh: bool
    lanes: tuple[LaneChange, ...]
    positions: Ints
    tokens: Ints


class Computed(NamedTuple):
    """What a step computed, in canvas positions."""

    start: int
    end: int
    refresh: bool


class LaneEventRecorder:
    """Looks at a request before and after its lanes advance."""

    def __init__(self, canvas: Ints, mask_id: int) -> None:
        self._canvas = canvas
        self._mask_id = mask_id
        self._open = canvas == mask_id
        self._found: list[tuple[Lane, Role, int, int]] = []

    def before(self, lanes: Sequence[Lane]) -> None:
        self._found = [(lane, lane.role, lane.start, lane.end) for lane in lanes]

    def after(self, tree: LaneTree, step: int, computed: Computed) -> LaneEvents:
        """Without `before`, the step drove no lane."""
        lanes = tuple(
            LaneChange(lane.id, lane.parent, role, start, end, _fate(lane, role, tree), self._canvas[start:end].copy())
            for lane, role, start, end in self._found
        )
        open_ = self._canvas == self._mask_id
        positions = np.flatnonzero(self._open & ~open_).astype(np.int32)
        self._open, self._found = open_, []
        return LaneEvents(step, *computed, lanes, positions, self._canvas[positions])


def _fate(lane: Lane, was: Role, tree: LaneTree) -> Fate:
    if lane.role is not was:
        return Fate.FORKED
    if lane in tree.live:
        return Fate.LIVE
    return Fate.CANCELLED if lane.start >= tree.limit else Fate.FINISHED
