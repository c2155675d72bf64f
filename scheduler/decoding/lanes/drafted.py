"""A lane of drafted positions and the one after them, which begins with the first open position and moves on with
it."""

from __future__ import annotations

from dataclasses import dataclass

from ..attention_pattern import MOST_DRAFTED
from ..lane_tree import LaneTree
from ..params import Range
from .base import LanePolicy, LaneStatus


@dataclass(frozen=True, slots=True)
class Drafted(LanePolicy):
    PARAMS = {"draft_length": Range(1, MOST_DRAFTED, whole=True)}

    draft_length: int

    def open(self, tree: LaneTree) -> None:
        tree.block_length = self.draft_length + 1
        tree.append(0)

    def advance(self, tree: LaneTree, statuses: list[LaneStatus]) -> None:
        (lane,) = tree.live
        if not tree.slide(lane, self.draft_length + 1):
            tree.finish(lane)
