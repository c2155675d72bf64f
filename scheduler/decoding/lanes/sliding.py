"""A block without borders: its end moves on by one position for each that commits, its start to the first open one.

So no position waits because it lies just after a border, and none must commit because the block before a border has to
be filled. Source: DSB, arXiv 2602.05992; lizhuo-luo/DSB llada/generate.py, `generate_dsb`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from ..boundaries import Longs
from ..lane_tree import LaneTree
from ..params import OFF, Params, Range
from .base import ABSENT, LanePolicy, LaneStatus


@dataclass(frozen=True, slots=True)
class SlidingBlock(LanePolicy):
    """One lane with `block_length` open positions until the canvas ends (the authors' "greedy"). With a
    `max_block_length` it is no longer than that (their "constant", with that of the block)."""

    PARAMS = {"max_block_length": Range(1, 4096, whole=True, words=(OFF,))}
    serial = False
    slides = True

    block_length: int
    max_block_length: float = math.inf
    ends: bool = False  # it slides no further than an end token; for decoders that stop there

    @classmethod
    def of(cls, params: Params) -> Self:
        longest = params.get("max_block_length", OFF)
        bound = math.inf if longest == OFF else params.integer("max_block_length")
        ends = params.get("ends") is True and params["early_stop"] is True
        return cls(params.integer("block_length"), bound, ends)

    def open(self, tree: LaneTree) -> None:
        open_ = self._open(tree)
        tree.block_length = self.block_length
        tree.append(int(open_[0]), block_end=self._end(tree, open_))

    def advance(self, tree: LaneTree, statuses: list[LaneStatus]) -> None:
        if not tree.live:  # a host rule has cut the canvas before it
            return
        if self.ends and statuses[0].end_at != ABSENT:
            tree.end_at(statuses[0].end_at)
        (lane,), open_ = tree.live, self._open(tree)
        if not len(open_):
            tree.finish(lane)
            return
        lane.start = int(open_[0])
        tree.cut(lane, self._end(tree, open_))

    def _open(self, tree: LaneTree) -> Longs:
        """The open positions of the canvas."""
        return np.flatnonzero(tree.canvas[: tree.limit] == tree.mask_id)

    def _end(self, tree: LaneTree, open_: Longs) -> int:
        size = self.block_length
        end = int(open_[size - 1]) + 1 if len(open_) > size else tree.limit
        return int(min(end, open_[0] + self.max_block_length))
