"""Serial blocks of fixed length, as LLaDA and Fast-dLLM decode: the next starts when the last is full.

Source: Nie et al., Large Language Diffusion Models, arXiv 2502.09992.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..lane_tree import LaneTree
from .base import LanePolicy, LaneStatus


@dataclass(frozen=True, slots=True)
class Blockwise(LanePolicy):
    block_length: int

    def open(self, tree: LaneTree) -> None:
        tree.block_length = tree.block_length or self.block_length
        tree.append(0)

    def advance(self, tree: LaneTree, statuses: list[LaneStatus]) -> None:
        (lane,) = tree.live
        if not lane.masks:
            tree.finish(lane)
            tree.append(lane.end, lane)
