"""Several blocks at once: the next begins when the last has begun to fill, and not when it is full.

Sources: D2F, arXiv 2508.09192 (zhijie-group/Discrete-Diffusion-Forcing D2F-eval/eval_llada.py), and d3LLM, arXiv
2601.07568 (hao-ai-lab/d3LLM d3llm_llada_generate_util.py). Behind the last block a new one is added, one in a step,
once a share `add_threshold` of it is committed. A block is active once its predecessor has `active_threshold`: then it
commits something in every step, before that only what passes the rule. The leftmost block always is, so a rule that
looks at all blocks as one, as d3LLM's does, needs no other. At an end token the canvas is cut, whatever is still open
before it, and no blocks are added; d3LLM fills up what is behind it, as in training. The end of a turn is an end token,
too, where d3LLM waits for that of the text. The cache `finished` keeps the keys of blocks when both do.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ..lane_tree import Lane, LaneTree
from .base import ABSENT, LaneStatus, Unforked


@dataclass(frozen=True, slots=True)
class MultiBlock(Unforked):
    """With both thresholds at 1 blocks are serial. Without `early_stop` an end token is a token like others. One that
    `fills` has a judge, since only then the device is told."""

    serial = False

    block_length: int
    add_threshold: float
    active_threshold: float
    early_stop: bool = True
    fills: bool = False

    def open(self, tree: LaneTree) -> None:
        tree.block_length = tree.block_length or self.block_length
        tree.append(0)

    def advance(self, tree: LaneTree, facts: list[LaneStatus]) -> None:
        before = tuple(tree.live)
        ends = [fact.end_at for fact in facts if fact.end_at != ABSENT]
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
        for lane, behind in pairwise(lanes):
            behind.active |= lane is not behind and lane.progress >= self.active_threshold
