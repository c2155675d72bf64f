"""AsyncLane: the continuation advances while the prefix before a delimiter is still being refined.

Source: arXiv 2606.08411. Siblings are live (one row, each sees the other's newest tokens), not isolated as in the
paper.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..tree import Lane, LaneTree, Role
from .base import ABSENT, LaneFacts


@dataclass(frozen=True, slots=True)
class AsyncLane:
    block_length: int
    max_lanes: int
    min_fill: float

    def open(self, length: int) -> list[Lane]:
        end = min(self.block_length, length)
        return [Lane(Role.GENERATE, 0, end, end)]

    def advance(self, tree: LaneTree, facts: list[LaneFacts]) -> None:
        for lane, fact in zip(tuple(tree.live), facts, strict=True):
            ends = fact.end_at != ABSENT
            if ends:
                tree.end_at(fact.end_at)
            open_ = fact.open_to_end if ends else fact.open
            if not open_:
                tree.finish(lane)
                if lane.role is Role.GENERATE:
                    self._continue(tree, lane.end)
            elif lane.role is Role.GENERATE and len(tree.live) < self.max_lanes:
                self._fork(tree, lane, fact, open_)
            if ends:
                return  # what lay behind is cancelled

    def _continue(self, tree: LaneTree, start: int) -> None:
        if start < tree.limit:
            end = min(start + self.block_length, tree.limit)
            tree.add(start, end, end - start)

    def _fork(self, tree: LaneTree, lane: Lane, fact: LaneFacts, open_: int) -> None:
        """Fork `lane`, with `open_` masks, behind its last delimiter, if it has one and masks are left behind it."""
        at = fact.fork_at + 1
        end = min(at + self.block_length, tree.limit)
        masks = open_ - fact.open_to_fork + end - lane.end
        if fact.fork_at == ABSENT or at >= lane.end or not masks:
            return
        tree.fork(lane, at, end, masks)
        if not fact.open_to_fork:
            tree.finish(lane)
