"""The lane tree of one request: the parts of its canvas in work, in output order."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from ..contract import Ints
from .attention_pattern import AttentionPattern


class Role(Enum):
    """A generate lane may fork and has a successor; a refine lane finishes the positions before a fork, or a gap of a
    template."""

    GENERATE = "generate"
    REFINE = "refine"


class Layout(Enum):
    """How the lanes of one request become rows of a step. The scheduler maps each value to a class."""

    PACKED = "packed"  # all lanes in one row
    ISOLATED = "isolated"  # each refine lane in a row of its own
    DRAFTS = "drafts"  # one row of all lanes, and one more for each draft of the canvas
    VERIFIED = "verified"  # rows of a draft, and in other steps those of its check
    DRAFTER = "drafter"  # a row of another network's draft, and in the next step one of its check
    ENSEMBLE = "ensemble"  # one row for each branch, all with canvases of their own


FEW = 64  # positions that a list counts faster than numpy
GENERATE, REFINE = Role  # looked up once: each access runs Python code


@dataclass(slots=True, eq=False)
class Lane:
    """A live range `[start, end)` of the canvas. `masks` counts its open positions, `steps` its forwards so far.

    `id` counts the lanes of a request from 0; `parent` is the lane that it continues. `block_end` is its end before
    anything cut it. An `active` lane commits something in every step, as the leftmost does. `estimates` are the ends
    at which its forwards proposed to cut it, if its policy uses them.
    """

    id: int
    parent: int | None
    role: Role
    start: int
    end: int
    masks: int
    steps: int = 0
    block_end: int = 0
    active: bool = False
    estimates: tuple[int, ...] = ()

    @property
    def progress(self) -> float:
        """The committed share of its positions."""
        return 1 - self.masks / (self.end - self.start)


@dataclass(slots=True)
class LaneCounts:
    """The live lanes of several trees, and the refine lanes among them."""

    live: int = 0
    refining: int = 0


@dataclass(slots=True)
class LaneTree:
    """Live lanes, left to right, never overlapping. Only the rightmost one can fork or be followed by a new one, so
    depth-first order of the tree is canvas order. Positions before and between lanes are committed; those after the
    last are not in work yet, drafts, or left over from a cut. `origin` is the canvas's first position, absolute:
    generate lanes end at the borders of the network's blocks."""

    canvas: Ints
    mask_id: int
    origin: int = 0
    pattern: AttentionPattern = field(default_factory=AttentionPattern)  # of the network
    grid: AttentionPattern = field(init=False)  # borders where generate lanes end: the network's blocks or finer
    filler: int = 0  # the token that follows the end of an answer
    block_length: int = 0  # of the generate lanes to come
    inherits: bool = False  # a generate lane begins with the drafts that stand there
    gap_positions: int = 0  # open ones in gaps before the last, when the first lanes began
    limit: int = field(init=False)  # the canvas, or the answer, ends before this position
    live: list[Lane] = field(default_factory=list)
    counts: LaneCounts = field(default_factory=LaneCounts)  # its own lanes are in them
    born: int = 0
    forks: int = 0
    finished: int = 0
    cancelled: int = 0

    def __post_init__(self) -> None:
        self.limit, self.grid = len(self.canvas), self.pattern

    def masks(self, start: int, end: int) -> int:
        """Open positions in `[start, end)`."""
        if end - start <= FEW:
            tokens: list[int] = self.canvas[start:end].tolist()
            return tokens.count(self.mask_id)
        return int(np.count_nonzero(self.canvas[start:end] == self.mask_id))

    def forced(self, lane: Lane) -> bool:
        """True if the lane must commit something in the next step."""
        return lane.active or lane is self.live[0]

    def open_gaps(self) -> int:
        """Add a refine lane for each gap of the canvas that given tokens follow. Returns where the last gap starts."""
        open_ = np.flatnonzero(self.canvas == self.mask_id)
        if len(open_) == len(self.canvas):  # nearly always
            return 0
        last = np.flatnonzero(np.diff(open_) > 1)  # of each gap but the last one, in `open_`
        starts, ends = open_[[0, *(last + 1)]].tolist(), (open_[last] + 1).tolist()
        for start, end in zip(starts[:-1], ends, strict=True):
            self._add(REFINE, start, end)
            self.counts.refining += 1
            self.gap_positions += end - start
        return int(starts[-1])

    def append(self, start: int, parent: Lane | None = None, block_end: int = 0) -> None:
        """Add a generate lane at the right end, from the first open position at or after `start`; or from `start`, if
        it inherits drafts and not all of the lane is one. Without an open position before the limit, add none. It ends
        at `block_end` if that is after its start, or else with a block."""
        if start >= self.limit:
            return
        end = self._lane_end(start, block_end)
        if self.canvas[start] != self.mask_id and not (self.inherits and self.masks(start, end)):
            open_ = self.canvas[start : self.limit] == self.mask_id
            first = int(open_.argmax())
            if not open_[first]:
                return
            start += first
            end = self._lane_end(start, block_end)
        self._add(GENERATE, start, end, parent)

    def _lane_end(self, start: int, block_end: int) -> int:
        end = block_end if block_end > start else self.block_end(start)
        return end if end < self.limit else self.limit

    def _add(self, role: Role, start: int, end: int, parent: Lane | None = None) -> None:
        origin = None if parent is None else parent.id
        self.live.append(Lane(self.born, origin, role, start, end, self.masks(start, end), 0, end))
        self.born += 1
        self.counts.live += 1

    def block_end(self, start: int) -> int:
        """The end of a block from `start`: the last border of the grid within its length, or else the next one."""
        size, first = self.grid.block_size, self.origin + start
        if not size:
            return start + (self.block_length or 1)
        border = (first + self.block_length) // size * size
        return (border if border > first else (first // size + 1) * size) - self.origin

    def cut(self, lane: Lane, end: int) -> None:
        lane.end = end
        lane.masks = self.masks(lane.start, end)

    def slide(self, lane: Lane, length: int) -> bool:
        """Move a lane to its first open position or the first one after it, to be up to `length` long. Return whether
        there is one before the limit."""
        open_ = np.flatnonzero(self.canvas[lane.start : self.limit] == self.mask_id)
        if not len(open_):
            return False
        lane.start += int(open_[0])
        lane.end = lane.block_end = min(lane.start + length, self.limit)
        lane.masks = self.masks(lane.start, lane.end)
        return True

    def fork(self, lane: Lane, at: int, block_end: int = 0) -> None:
        """Make `lane` the refine lane of `[start, at)`, and add a generate lane after it, as `append` does."""
        self.cut(lane, at)
        self.counts.refining += lane.role is GENERATE
        lane.role, lane.steps = REFINE, 0
        self.forks += 1
        self.append(at, lane, block_end)

    def finish(self, lane: Lane) -> None:
        self.live.remove(lane)
        self.finished += 1
        self._leave(lane)

    def end_at(self, position: int) -> None:
        """End the answer with the token at `position`: cancel the lanes after it, cut the one across it."""
        self.limit = min(self.limit, position + 1)
        while self.live and self.live[-1].start >= self.limit:
            self._leave(self.live.pop())
            self.cancelled += 1
        if self.live and self.live[-1].end > self.limit:
            self.cut(self.live[-1], self.limit)

    def close(self) -> None:
        """The request has ended: its lanes do not count any more."""
        for lane in self.live:
            self._leave(lane)

    def _leave(self, lane: Lane) -> None:
        self.counts.live -= 1
        self.counts.refining -= lane.role is REFINE
