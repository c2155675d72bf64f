"""Serial blocks that grow as ASS's calls do, which commit 1, 2, 4, ... positions.

Source: arXiv 2509.23924; yjyddq/EOSER-ASS-RL eval/generate.py, `block_num`. Of the calls that a canvas takes, each of
the last `block_count` - 1 has a block of its own, and those before share the first. So of 128 positions in four blocks
15 take four calls, then 16, 32 and 65 one each. One block is the canvas: so the authors evaluate it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..commit.shared.schedule import doublings
from ..lane_tree import LaneTree
from .base import LaneStatus, Unforked


@dataclass(frozen=True, slots=True)
class Growing(Unforked):
    block_count: int

    def open(self, tree: LaneTree) -> None:
        tree.append(0, block_end=self._end(tree, 0))

    def advance(self, tree: LaneTree, facts: list[LaneStatus]) -> None:
        (lane,) = tree.live
        if not lane.masks:
            tree.finish(lane)
            tree.append(lane.end, lane, self._end(tree, lane.end))

    def _end(self, tree: LaneTree, start: int) -> int:
        """Of the block from `start`: the next 2^i - 1 from the first one's end on, or else the canvas's."""
        length = len(tree.canvas)
        calls = doublings(length)
        done = max(calls - self.block_count, doublings(start + 1)) + 1
        return length if done >= calls else (1 << done) - 1
