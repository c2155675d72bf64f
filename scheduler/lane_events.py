"""The effect of one step on the lanes of a request: for streams with lanes, traces and the terminal view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from .contract import Ints
from .decoding.lane_tree import Lane, LaneTree, Role


class Fate(Enum):
    """The state of a lane after a step."""

    LIVE = "live"
    FORKED = "forked"  # it goes on as the refine lane of its first part
    FINISHED = "finished"
    CANCELLED = "cancelled"  # the answer ends before it


@dataclass(frozen=True, slots=True)
class LaneChange:
    """A lane `[start, end)` in canvas positions before a step, and its fate in it. `tokens` [end - start] stand there
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
    """Step `step` of a request. It computed `[start, end)`, in canvas positions: the prompt is below 0.

    It committed `tokens` [n] at `positions` [n]. Tokens outside of all lanes are drafts.
    """

    step: int
    start: int
    end: int
    refresh: bool
    lanes: tuple[LaneChange, ...]
    positions: Ints
    tokens: Ints


class LaneEventRecorder:
    """Looks at a request before and after its lanes advance."""

    def __init__(self, canvas: Ints, mask_id: int) -> None:
        self._canvas = canvas
        self._mask_id = mask_id
        self._open = canvas == mask_id
        self._found: list[tuple[Lane, Role, int, int]] = []

    def before(self, lanes: Sequence[Lane]) -> None:
        """`lanes` are about to advance. Without this call, the step drives no lane."""
        self._found = [(lane, lane.role, lane.start, lane.end) for lane in lanes]

    def after(self, tree: LaneTree, step: int, start: int, end: int, refresh: bool) -> LaneEvents:
        """The events of a step that computed the canvas positions `[start, end)`."""
        lanes = tuple(
            LaneChange(
                lane.id, lane.parent, role, first, last, _fate(lane, role, tree), self._canvas[first:last].copy()
            )
            for lane, role, first, last in self._found
        )
        open_ = self._canvas == self._mask_id
        positions = np.flatnonzero(self._open & ~open_).astype(np.int32)
        self._open, self._found = open_, []
        return LaneEvents(step, start, end, refresh, lanes, positions, self._canvas[positions])


def _fate(lane: Lane, was: Role, tree: LaneTree) -> Fate:
    if lane.role is not was:
        return Fate.FORKED
    if lane in tree.live:
        return Fate.LIVE
    return Fate.CANCELLED if lane.start >= tree.limit else Fate.FINISHED
