"""Serial blocks that grow as ASS's forwards do, which commit 1, 2, 4, ... positions.

Source: arXiv 2509.23924; yjyddq/EOSER-ASS-RL eval/generate.py, `block_num`. Of the forwards that a canvas takes, each
of the last `block_count` - 1 has a block of its own, and those before share the first. So of 128 positions in four
blocks 15 take four forwards, then 16, 32 and 65 one each. One block is the canvas: so the authors evaluate it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..lane_tree import LaneTree
from ..params import Range, doublings
from .base import LanePolicy, LaneStatus


@dataclass(frozen=True, slots=True)
class Growing(LanePolicy):
    PARAMS = {"block_count": Range(1, 64, whole=True)}
    waits = True

    block_count: int

    def open(self, tree: LaneTree) -> None:
        tree.append(0, block_end=self._end(tree, 0))

    def advance(self, tree: LaneTree, statuses: list[LaneStatus]) -> None:
        (lane,) = tree.live
        if not lane.masks:
            tree.finish(lane)
            tree.append(lane.end, lane, self._end(tree, lane.end))

    def _end(self, tree: LaneTree, start: int) -> int:
        """The end of the block from `start`: the next 2^i - 1 from the first one's end on, or else the canvas's."""
        length = len(tree.canvas)
        forwards = doublings(length)
        done = max(forwards - self.block_count, doublings(start + 1)) + 1
        return length if done >= forwards else (1 << done) - 1
