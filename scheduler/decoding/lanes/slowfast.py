"""SlowFast: within a block, slow forwards find how far the network sees ahead, and fast ones fill what they found.

Source: arXiv 2506.10848; LiangrunFlora/Slow-Fast-Sampling generate_slow_fast_sampling.py. A block falls into cycles. In
its slow forwards a cycle reaches to the end of the block, and each of them estimates where it should end: at the last
open position of at least `cycle_threshold` confidence. Once the last `stable_window` estimates have a standard
deviation below `stable_spread`, the last of them stands, else after `slow_calls` their mean. Then the cycle is cut
there, and when it is full the next one begins. Slow and fast forwards commit by the same rule; the authors' own is
Fast-dLLM's threshold in other words.

Their code makes all `slow_calls` also when the estimate stands: `explore` "all"; "stable", as the paper has it, cuts at
once. Their fast forwards, except the first of a cycle, see nothing after it: `lookahead` 0 does so for all forwards.
A cycle here starts at the first open position, and a full block ends its cycle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..commit.base import StepView
from ..lane_tree import Lane, LaneTree
from ..params import Choice, Range
from ..vocabulary import Vocabulary
from .base import LanePolicy, LaneStatus


@dataclass(frozen=True, slots=True)
class SlowFast(LanePolicy):
    PARAMS = {
        "slow_calls": Range(1, 4096, whole=True),
        "cycle_threshold": Range(0.0, 1.0),
        "stable_window": Range(1, 4096, whole=True),
        "stable_spread": Range(0.0, 4096.0),
        "explore": Choice(("all", "stable")),
    }
    reads_view = True

    block_length: int
    slow_calls: int
    cycle_threshold: float
    stable_window: int
    stable_spread: float
    explore: str

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

    def advance(self, tree: LaneTree, statuses: list[LaneStatus]) -> None:
        (lane,) = tree.live
        stands = self._stands(lane)
        at_once = stands and self.explore == "stable" and lane.end == lane.block_end
        if lane.steps == self.slow_calls or at_once:
            end = lane.estimates[-1] if stands else int(np.mean(lane.estimates[-self.stable_window :]))
            tree.cut(lane, min(end, lane.end))
        if not lane.masks:
            tree.finish(lane)
            tree.append(lane.end, lane, lane.block_end)
