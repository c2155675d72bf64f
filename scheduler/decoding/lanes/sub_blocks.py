"""Sub-blocks: the parts of a network's block are filled in order, after its first token.

Source: Fast-dLLM v2, arXiv 2509.26328; generate of its model file, NVlabs/Fast-dLLM v2/generation_functions.py. For
networks that attend within blocks. Where the network predicts the token after each position, the first token of a block
is known once the block before it is final: the forward that computes that one for the last time commits it, whatever
its confidence.

The stop of `generate` is `early_stop` true, that of `batch_sample` is `block`. Three things differ. `batch_sample` goes
on after an end token that is the first of its block; here that block is the last. A prompt of exactly one block is
computed, where the published code loses it. And the whole blocks of a prompt go along with the first forward, so a
prompt that ends within a block needs one forward less.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..attention_pattern import AttentionPattern
from ..lane_tree import Lane, LaneTree
from ..params import Range
from .base import LanePolicy, LaneStatus


@dataclass(frozen=True, slots=True)
class SubBlocks(LanePolicy):
    """`sub_block_length` divides the network's block."""

    PARAMS = {"sub_block_length": Range(1, 4096, whole=True)}
    waits = True

    sub_block_length: int

    def open(self, tree: LaneTree) -> None:
        tree.grid, tree.block_length = AttentionPattern(block_size=self.sub_block_length), self.sub_block_length
        self._append(tree, 0)

    def advance(self, tree: LaneTree, statuses: list[LaneStatus]) -> None:
        (lane,) = tree.live
        if not lane.masks:
            tree.finish(lane)
            self._append(tree, lane.end, lane)

    def _append(self, tree: LaneTree, start: int, parent: Lane | None = None) -> None:
        begins = tree.pattern.floor(tree.origin + start) == tree.origin + start
        tree.append(start, parent, block_end=start + 1 if begins and tree.pattern.logit_shift else 0)
