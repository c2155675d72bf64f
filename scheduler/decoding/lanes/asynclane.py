"""AsyncLane: the continuation advances while the prefix before a boundary is still being refined.

Source: arXiv 2606.08411. Siblings are live (one row, each sees the other's newest tokens), unless `isolated` asks for
the paper's own, each on a prefix as it was at the fork.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..boundaries import Boundary
from ..lane_tree import Lane, LaneTree, Role
from .base import ABSENT, LaneStatus, Plain


@dataclass(frozen=True, slots=True)
class AsyncLane(Plain):
    """`coupled` lanes wait at their boundary for what is left before it; without `early_stop` an end token is a
    token like others."""

    serial = False

    block_length: int
    max_lanes: int
    min_fill: float
    min_steps: int = 1
    boundary: Boundary = Boundary.AUTO
    stable_steps: int = 0
    coupled: bool = False
    early_stop: bool = True

    def open(self, tree: LaneTree) -> None:
        tree.block_length = tree.block_length or self.block_length
        tree.append(0)

    def advance(self, tree: LaneTree, facts: list[LaneStatus]) -> None:
        for lane, fact in zip(tuple(tree.live), facts, strict=True):
            ends = self.early_stop and fact.end_at != ABSENT
            if ends:
                tree.end_at(fact.end_at)
            if lane.masks and self._forks(tree, lane, fact):
                self._fork(tree, lane, fact.fork_at + 1)
            elif not lane.masks:
                tree.finish(lane)
                if lane.role is Role.GENERATE:
                    tree.append(lane.end, lane)
            if ends:
                return  # what lay behind is cancelled

    def _forks(self, tree: LaneTree, lane: Lane, fact: LaneStatus) -> bool:
        return (
            lane.role is Role.GENERATE
            and fact.fork_at != ABSENT
            and lane.steps >= self.min_steps
            and len(tree.live) < self.max_lanes
            and tree.masks(fact.fork_at + 1, min(fact.fork_at + 1 + tree.block_length, tree.limit)) > 0
        )

    def _fork(self, tree: LaneTree, lane: Lane, at: int) -> None:
        if self.coupled and tree.masks(lane.start, at):
            tree.cut(lane, at)
            tree.forks += 1
            return
        tree.fork(lane, at)
        if not lane.masks:
            tree.finish(lane)
