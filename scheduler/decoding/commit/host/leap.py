"""LEAP: less certainty is enough where tokens that are likely to come do not change the network's mind.

Source: arXiv 2605.10980, of which only a summary was to be had.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from ...lane_tree import Lane
from ...params import Params, Range, Values
from ..base import CommitDecision, HostRuleDefaults, Replica, StepView

NONE = -1


class Leap(HostRuleDefaults):
    """What a call proposes at open positions with more than `pool` probability are candidates in the next one. That one
    asks each position of the block a second time, at a mask that sees the block's candidates, its own apart. Open
    positions of `threshold` confidence commit where both answers are the same; where none does, the best commits.

    Known of the source are the superposed row of the canvas, candidates and masks, both numbers and the rule. Ours is
    what it leaves open: candidates and masks lie behind the canvas and see all of it, a mask not its own candidate;
    where no position has a candidate there, the candidates' row holds what the block does; a block's first call, which
    has none at all, takes its only answer; confidence is that of the canvas.
    """

    PARAMS: Mapping[str, Values] = {"pool": Range(0.0, 1.0)}

    replica_count = 2

    def __init__(self, threshold: float, pool: float, length: int) -> None:
        self._threshold, self._pool = threshold, pool
        self._likely = np.full(length, NONE, np.int32)  # by canvas position, what stands there or is likely to

    @classmethod
    def of(cls, knobs: Params, length: int) -> Self:
        return cls(knobs.number("threshold"), knobs.number("pool"), length)

    def replicas(self, lane: Lane, mask_id: int) -> tuple[Replica, ...]:
        likely = self._likely[lane.start : lane.end]
        if (likely == NONE).all():
            return ()
        masks = np.full(len(likely), mask_id, np.int32)
        return Replica(np.where(likely == NONE, masks, likely), projected=False), Replica(masks, hidden_in=1)

    def choose(self, view: StepView) -> CommitDecision:
        confidence, open_ = view.confidence, view.open
        agreed = np.ones(len(confidence), np.bool_)
        if view.replica is not None:
            agreed = view.tokens == view.replica.proposals
        verdict = view.commit(view.at_least(np.where(agreed, confidence, confidence - 1), self._threshold))
        likely = np.where(open_ & (confidence <= self._pool), NONE, np.where(open_, view.tokens, view.canvas_tokens))
        self._likely[view.positions] = np.where(verdict.tokens == view.mask_id, likely, verdict.tokens)
        return verdict
