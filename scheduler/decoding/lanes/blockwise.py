"""Serial blocks of fixed length, as LLaDA and Fast-dLLM decode: the next starts when the last is full.

Source: Nie et al., Large Language Diffusion Models, arXiv 2502.09992.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..lane_tree import LaneTree
from .base import LanePolicy, LaneStatus


@dataclass(frozen=True, slots=True)
class Blockwise(LanePolicy):
    waits = True

    block_length: int

    def advance(self, tree: LaneTree, statuses: list[LaneStatus]) -> None:
        (lane,) = tree.live
        if not lane.masks:
            tree.finish(lane)
            tree.append(lane.end, lane)
