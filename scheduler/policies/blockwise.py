"""Serial blocks of fixed length, as LLaDA and Fast-dLLM decode: the next starts when the last is full.

Source: Nie et al., Large Language Diffusion Models, arXiv 2502.09992.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..tree import Lane, LaneTree, Role
from .base import LaneFacts

NEVER = 2.0


@dataclass(frozen=True, slots=True)
class Blockwise:
    block_length: int
    min_fill: float = NEVER

    def open(self, length: int) -> list[Lane]:
        end = min(self.block_length, length)
        return [Lane(Role.GENERATE, 0, end, end)]

    def advance(self, tree: LaneTree, facts: list[LaneFacts]) -> None:
        (lane,) = tree.live
        if facts[0].open:
            return
        tree.finish(lane)
        if lane.end < tree.limit:
            end = min(lane.end + self.block_length, tree.limit)
            tree.add(lane.end, end, end - lane.end)
