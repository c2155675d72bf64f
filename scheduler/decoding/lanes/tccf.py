"""TCCF: serial blocks that are coarse as long as the model thinks, and fine from there on.

Source: Think Coarse, Critic Fine, arXiv 2602.09555; LuLuLuyi/TDAR src/sample/tdar_sample_tccf.py. For networks that
attend within blocks: a coarse lane is one of their blocks, or some. Once the mark that ends thinking (`turn`) has
committed, the lane is cut at the next border of fine ones, which are equal parts of a block. The mark is a token
`</think>` (`think`), one with an empty line (`newlines`) or one that ends a line (`newline`); in the prompt it is none.

It differs in three things. The authors run a second engine whose network attends within fine blocks; here a position
sees its whole block as before, with the masks behind its lane. They discard what their last coarse block holds behind
the mark, and compute it anew; here what has committed stays. And they put a sentence behind the mark, which asks to
check for mistakes: a prompt, which is the client's to give, as the beginning of an assistant's message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..attention_pattern import AttentionPattern
from ..lane_tree import LaneTree
from ..vocabulary import EMPTY, LINE, THOUGHT, Vocabulary
from .base import ABSENT, LaneStatus, Unforked, require_token

TURNS: Mapping[str, int] = {"think": THOUGHT, "newlines": EMPTY, "newline": LINE}


@dataclass(frozen=True, slots=True)
class CoarseFine(Unforked):
    """`block_length` is a multiple of the network's block, and `fine_length` divides it."""

    block_length: int
    fine_length: int
    turn: str

    @property
    def marks(self) -> int:
        return TURNS[self.turn]

    def require(self, vocabulary: Vocabulary) -> None:
        require_token(vocabulary, "turn", self.turn, TURNS)

    def open(self, tree: LaneTree) -> None:
        tree.block_length = self.block_length
        tree.append(0)

    def advance(self, tree: LaneTree, facts: list[LaneStatus]) -> None:
        (lane,), (fact,) = tree.live, facts
        if fact.mark_at != ABSENT and tree.block_length != self.fine_length:
            tree.grid, tree.block_length = AttentionPattern(block_size=self.fine_length), self.fine_length
            tree.cut(lane, min(tree.block_end(fact.mark_at), lane.end))
        if not lane.masks:
            tree.finish(lane)
            tree.append(lane.end, lane)
