"""LEAP: less confidence is enough where tokens that are likely to come do not change the network's proposal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from ...lane_tree import Lane
from ...params import Params, Range
from ..base import CommitDecision, HostCommitRule, Replica, StepView

NONE = -1


class Leap(HostCommitRule):
    """Proposals at open positions with more than `pool` probability are the candidates of the next forward. That
    forward computes each position of the block a second time, as a mask that sees the block's candidates except its
    own. Open positions of `threshold` confidence commit where both proposals are the same; where none does, the best
    commits.

    Source: arXiv 2605.10980, of which only a summary was available. From the source: the superposed row of canvas,
    candidates and masks, both numbers and the rule. Ours is what the summary leaves open: candidates and masks lie
    after the canvas and see all of it, a mask does not see its own candidate; where a position has no candidate, the
    candidates' row has the token of the block; the first forward of a block, which has no candidates, takes its only
    proposal; confidence is that of the canvas.
    """

    NAME = "leap"
    SOURCE = "after arXiv 2605.10980, of which only a summary was available: see `Leap`"
    DEFAULTS = {"threshold": 0.7, "pool": 0.2}
    PARAMS = {"pool": Range(0.0, 1.0)}
    replica_count = 2

    def __init__(self, params: Params, length: int) -> None:
        self._threshold, self._pool = params.number("threshold"), params.number("pool")
        self._likely = np.full(length, NONE, np.int32)  # by canvas position: the committed token, or the candidate

    def replicas(self, lane: Lane, mask_id: int) -> tuple[Replica, ...]:
        likely = self._likely[lane.start : lane.end]
        if (likely == NONE).all():
            return ()
        masks = np.full(len(likely), mask_id, np.int32)
        return Replica(np.where(likely == NONE, masks, likely), projected=False), Replica(masks, hidden_in=1)

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        confidence, open_, replica = view.confidence, view.open, view.replica
        threshold, pool = view.each([rule._threshold for rule in rules]), view.each([rule._pool for rule in rules])
        kept = [rule._likely for rule in rules]
        agreed = np.True_ if replica is None else ~replica.there | (view.tokens == replica.proposals)
        decision = view.commit(view.at_least(np.where(agreed, confidence, confidence - 1), threshold))
        likely = np.where(open_ & (confidence <= pool), NONE, np.where(open_, view.tokens, view.canvas_tokens))
        view.scatter(kept, np.where(decision.tokens == view.mask_id, likely, decision.tokens))
        return decision
