"""TCCF: serial blocks that are coarse while the model thinks, and fine from there on.

Source: Think Coarse, Critic Fine, arXiv 2602.09555; LuLuLuyi/TDAR src/sample/tdar_sample_tccf.py. For networks that
attend within blocks: a coarse lane is one or several of their blocks. Once the mark that ends thinking (`turn`) has
committed, the lane is cut at the next border of fine ones, which are equal parts of a block. The mark is a token
`</think>` (`think`), one with an empty line (`newlines`) or one that ends a line (`newline`); in the prompt it does not
count.

Three things differ. The authors run a second engine whose network attends within fine blocks; here a position sees its
whole block as before, with the masks after its lane. They discard what their last coarse block contains after the mark,
and recompute it; here committed tokens stay. And they put a sentence after the mark that demands a check for mistakes:
a prompt, which the client may give as the beginning of an assistant's message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..attention_pattern import AttentionPattern
from ..lane_tree import LaneTree
from ..params import Choice, Range
from ..vocabulary import EMPTY, LINE, THOUGHT
from .base import ABSENT, LanePolicy, LaneStatus

TURNS: Mapping[str, int] = {"think": THOUGHT, "newlines": EMPTY, "newline": LINE}


@dataclass(frozen=True, slots=True)
class CoarseFine(LanePolicy):
    """`block_length` is a multiple of the network's block, and `fine_length` divides it."""

    PARAMS = {"fine_length": Range(1, 4096, whole=True), "turn": Choice(tuple(TURNS))}
    TOKENS = {"turn": TURNS}
    waits = True

    block_length: int
    fine_length: int
    turn: str

    marks: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "marks", TURNS[self.turn])

    def open(self, tree: LaneTree) -> None:
        tree.block_length = self.block_length
        tree.append(0)

    def advance(self, tree: LaneTree, statuses: list[LaneStatus]) -> None:
        (lane,), (status,) = tree.live, statuses
        if status.mark_at != ABSENT and tree.block_length != self.fine_length:
            tree.grid, tree.block_length = AttentionPattern(block_size=self.fine_length), self.fine_length
            tree.cut(lane, min(tree.block_end(status.mark_at), lane.end))
        if not lane.masks:
            tree.finish(lane)
            tree.append(lane.end, lane)
