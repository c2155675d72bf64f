"""Several blocks at once: the next begins when the last has begun to fill, and not when it is full.

Sources: D2F, arXiv 2508.09192 (zhijie-group/Discrete-Diffusion-Forcing D2F-eval/eval_llada.py), and d3LLM, arXiv
2601.07568 (hao-ai-lab/d3LLM d3llm_llada_generate_util.py). Once a share `add_threshold` of the last block is committed,
a new one is added after it, one in each step. A block is active once its predecessor has committed `active_threshold`:
then it commits something in every step, before that only what passes the rule. The leftmost block is always active, so
a rule that treats all blocks as one, as d3LLM's does, needs no other. At an end token the canvas is cut, even if
positions before it are open, and no blocks are added; d3LLM fills the rest of it, as in training. The end of a turn is
an end token too, where d3LLM waits for that of the text. The cache `finished` keeps the keys of blocks when both do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from ..lane_tree import Lane, LaneTree
from ..params import OFF, Params, Range
from .base import ABSENT, LanePolicy, LaneStatus


@dataclass(frozen=True, slots=True)
class MultiBlock(LanePolicy):
    """With both thresholds at 1 blocks are serial. Without `early_stop` an end token is a token like others."""

    PARAMS = {"add_threshold": Range(0.0, 1.0), "active_threshold": Range(0.0, 1.0, words=(OFF,))}
    serial = False

    block_length: int
    add_threshold: float
    active_threshold: float = math.inf
    early_stop: bool = True
    fills: bool = False  # it fills the canvas after an end token; for host rules, whose tokens the device is sent

    @classmethod
    def of(cls, params: Params) -> Self:
        return cls(
            block_length=params.integer("block_length"),
            add_threshold=params.number("add_threshold"),
            active_threshold=params.threshold("active_threshold"),
            early_stop=params["early_stop"] is True,
            fills=params.get("fills") is True,
        )

    def open(self, tree: LaneTree) -> None:
        tree.block_length = tree.block_length or self.block_length
        tree.append(0)

    def advance(self, tree: LaneTree, statuses: list[LaneStatus]) -> None:
        before = tuple(tree.live)
        ends = [status.end_at for status in statuses if status.end_at != ABSENT]
        if self.early_stop and ends:
            tree.end_at(min(ends))
            if self.fills:
                tree.canvas[tree.limit :] = tree.filler
        for lane in tuple(tree.live):
            if not lane.masks:
                tree.finish(lane)
        last = before[-1]
        if last.progress >= self.add_threshold or not last.masks:
            tree.append(last.end, last)
        self._activate((*before, *tree.live[-1:]))

    def _activate(self, lanes: tuple[Lane, ...]) -> None:
        for lane, after in pairwise(lanes):
            after.active |= lane is not after and lane.progress >= self.active_threshold
