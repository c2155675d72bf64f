"""AsyncLane: the continuation advances while the prefix before a boundary is still being refined.

Source: arXiv 2606.08411. Siblings are live (one row, each sees the other's newest tokens), unless `isolated` selects
the paper's own, each on a prefix as it was at the fork.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ..boundaries import Boundary
from ..lane_tree import GENERATE, Lane, LaneTree
from ..params import AUTO, BLOCK, DEFAULT_SHAPE, Choice, Params, Range
from .base import ABSENT, LanePolicy, LaneStatus


@dataclass(frozen=True, slots=True)
class AsyncLane(LanePolicy):
    """`coupled` lanes wait at their boundary for what is left before it; without `early_stop` an end token is a
    token like others, and with `block` one until its lane is full.

    The paper's own lanes differ in four things, which are no parameters: each commits its best token in every forward;
    `min_fill` is a share of the whole lane; a lane may fork at its first and last position; and it begins with the
    drafts that stand there."""

    PARAMS = {
        "max_lanes": Range(1, 64, whole=True),
        "min_fill": Range(0.0, 1.0),
        "min_steps": Range(1, 4096, whole=True),
        "boundary": Choice(tuple(boundary.name.lower() for boundary in Boundary)),
        "stable_steps": Range(0, 4096, whole=True),
        "siblings": Choice(("live", "isolated", "coupled", "commit")),
        "child_length": Choice(("block", "rest")),
        "refine_lookahead": Range(0, 4096, whole=True),
    }
    serial = False
    waits = True

    block_length: int
    max_lanes: int
    min_fill: float
    min_steps: int = 1
    boundary: Boundary = Boundary.AUTO
    stable_steps: int = 0
    coupled: bool = False
    early_stop: object = True
    edges: bool = False
    lane_fill: float = 0.0  # share of a lane that must be committed before it may fork
    forces: bool = False  # each lane commits something in every step
    inherits: bool = False
    rest: bool = False  # a fork's generate lane ends where the lane did

    @classmethod
    def of(cls, params: Params) -> Self:
        least, published = params.number("min_fill"), params.get("published") is True
        size = DEFAULT_SHAPE.block_length if params["block_length"] == AUTO else params.integer("block_length")
        return cls(
            block_length=size,
            max_lanes=params.integer("max_lanes"),
            min_fill=0.0 if published else least,
            min_steps=params.integer("min_steps"),
            boundary=Boundary[params.text("boundary").upper()],
            stable_steps=params.integer("stable_steps"),
            coupled=params["siblings"] == "coupled",
            early_stop=params["early_stop"],
            edges=published,
            lane_fill=least if published else 0.0,
            forces=published,
            inherits=published,
            rest=params.get("child_length") == "rest",
        )

    def open(self, tree: LaneTree) -> None:
        tree.block_length = tree.block_length or self.block_length  # with block_length "auto" the load has set it
        tree.inherits = self.inherits
        tree.append(tree.open_gaps())
        self._force(tree)

    def crowded(self, tree: LaneTree) -> bool:
        return len(tree.live) >= self.max_lanes

    def advance(self, tree: LaneTree, statuses: list[LaneStatus]) -> None:
        for lane, status in zip(tuple(tree.live), statuses, strict=True):
            ends = self.early_stop and status.end_at != ABSENT
            if self.early_stop == BLOCK and lane.masks:
                ends = False  # its lane is filled first
            if ends:
                tree.end_at(status.end_at)
            if lane.masks and self._forks(tree, lane, status):
                self._fork(tree, lane, status.fork_at + 1)
            elif not lane.masks:
                tree.finish(lane)
                if lane.role is GENERATE:
                    tree.append(lane.end, lane)
            if ends:
                return  # the lanes after this one are cancelled
        self._force(tree)

    def _force(self, tree: LaneTree) -> None:
        if self.forces:
            for lane in tree.live:
                lane.active = True

    def _forks(self, tree: LaneTree, lane: Lane, status: LaneStatus) -> bool:
        return (
            lane.role is GENERATE
            and status.fork_at != ABSENT
            and lane.steps >= self.min_steps
            and lane.progress >= self.lane_fill
            and len(tree.live) < self.max_lanes
            and tree.masks(status.fork_at + 1, min(status.fork_at + 1 + tree.block_length, tree.limit)) > 0
        )

    def _fork(self, tree: LaneTree, lane: Lane, at: int) -> None:
        if self.coupled and tree.masks(lane.start, at):
            tree.cut(lane, at)
            tree.forks += 1
            return
        tree.fork(lane, at, lane.end if self.rest else 0)
        if not lane.masks:
            tree.finish(lane)
