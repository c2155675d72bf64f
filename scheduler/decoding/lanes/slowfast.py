"""SlowFast: within a block, slow calls find out how far the network sees ahead, and fast ones fill what they found.

Source: arXiv 2506.10848; LiangrunFlora/Slow-Fast-Sampling generate_slow_fast_sampling.py. A block falls into cycles. In
its slow calls a cycle reaches to the end of the block, and each call estimates where it should end: at the farthest
open position whose confidence is `cycle_threshold` or more. Once the last `stable_window` estimates have a standard
deviation below `stable_spread`, the last of them stands, else after `slow_calls` their mean. Then the cycle is cut
there, and when it is full the next one begins. Which positions commit is the same for slow and fast calls, and is up
to the rule: the authors' own is Fast-dLLM's threshold, in other words.

Their code makes all `slow_calls` also when the estimate stands: `explore` "all"; "stable", as the paper has it, cuts at
once. Their fast calls, but the first of a cycle, see nothing behind it: `lookahead` 0 does so for all calls.
A cycle here starts at the first open position, and a full block ends its cycle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..commit.base import StepView
from ..lane_tree import Lane, LaneTree
from ..vocabulary import Vocabulary
from .base import LaneStatus, Unforked


@dataclass(frozen=True, slots=True)
class SlowFast(Unforked):
    reads_view = True

    block_length: int
    slow_calls: int
    cycle_threshold: float
    stable_window: int
    stable_spread: float
    patient: bool  # makes all slow calls

    def open(self, tree: LaneTree) -> None:
        tree.block_length = tree.block_length or self.block_length
        tree.append(0)

    def read_view(self, tree: LaneTree, view: StepView, vocabulary: Vocabulary) -> None:
        (lane,) = tree.live
        if lane.steps >= self.slow_calls or self._stands(lane):
            return
        inside = (view.positions >= lane.start) & (view.positions < lane.end)
        sure = view.positions[inside & view.open & (view.confidence >= self.cycle_threshold)]
        lane.estimates += (int(sure[-1]) + 1 if len(sure) else lane.start + 1,)

    def _stands(self, lane: Lane) -> bool:
        last = lane.estimates[-self.stable_window :]
        return len(last) == self.stable_window and float(np.std(last)) < self.stable_spread

    def advance(self, tree: LaneTree, facts: list[LaneStatus]) -> None:
        (lane,) = tree.live
        stands = self._stands(lane)
        if lane.steps == self.slow_calls or (stands and not self.patient and lane.end == lane.block_end):
            end = lane.estimates[-1] if stands else int(np.mean(lane.estimates[-self.stable_window :]))
            tree.cut(lane, min(end, lane.end))
        if not lane.masks:
            tree.finish(lane)
            tree.append(lane.end, lane, lane.block_end)
