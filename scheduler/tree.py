"""The lane tree of one request: which parts of its canvas are being worked on, in output order."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Role(Enum):
    """A generate lane may fork and has a successor; a refine lane finishes what is left before a fork."""

    GENERATE = "generate"
    REFINE = "refine"


@dataclass(slots=True, eq=False)
class Lane:
    """A live range `[start, end)` of the canvas. `masks` counts its open positions at birth, `steps` its calls."""

    role: Role
    start: int
    end: int
    masks: int
    steps: int = 0


@dataclass(slots=True)
class LaneTree:
    """Live lanes, left to right, never overlapping. Only the rightmost one can be a generate lane, so depth-first
    order of the tree is canvas order and a request's lanes travel as one row."""

    live: list[Lane]
    limit: int  # canvas positions from here on are out of reach: the canvas, or the answer, ends
    born: int = field(init=False)
    forks: int = 0
    finished: int = 0
    cancelled: int = 0

    def __post_init__(self) -> None:
        self.born = len(self.live)

    def add(self, start: int, end: int, masks: int) -> None:
        """A generate lane at the right end."""
        self.live.append(Lane(Role.GENERATE, start, end, masks))
        self.born += 1

    def fork(self, lane: Lane, at: int, end: int, masks: int) -> None:
        """`lane` becomes the refine lane of `[start, at)`, a new generate lane goes on over `[at, end)`."""
        lane.role, lane.end = Role.REFINE, at
        self.forks += 1
        self.add(at, end, masks)

    def finish(self, lane: Lane) -> None:
        self.live.remove(lane)
        self.finished += 1

    def end_at(self, position: int) -> None:
        """The answer ends with the token at `position`: lanes behind it are cancelled, the one across it is cut."""
        self.limit = position + 1
        kept = [lane for lane in self.live if lane.start < self.limit]
        for lane in kept:
            lane.end = min(lane.end, self.limit)
        self.cancelled += len(self.live) - len(kept)
        self.live = kept
