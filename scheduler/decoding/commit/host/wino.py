"""WINO: commits freely, and takes back what the network would not say again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from ....contract import MOST_RANKS
from ...lane_tree import Lane
from ...params import Params, Range
from ..base import CommitDecision, HostCommitRule, Replica, StepView
from ..segments import Bools

SHARE = np.float32(0.7)  # of a block's masks that a forward may commit, but
LEAST, MOST = 5, 20  # at least and at most so many
UNBOUNDED = 30  # counts as the commits of the forward before a block's first


class Wino(HostCommitRule):
    """Open positions above `threshold` confidence commit, the best if there are too many, or else the best one. Each
    position of the block has a replica: a mask that sees everything, other replicas included, except its own token.
    Where more than one position commits, tokens that committed before are taken back if their probability at their
    replicas is below `back_threshold`: the least probable first, and fewer than the forward before has committed.

    Source: arXiv 2507.18578; Feng-Hong/WINO-DLLM LLaDA/decoding.py. A token that is not among the likeliest of its
    replica has probability 0.
    """

    NAME = "wino"
    SOURCE = "arXiv 2507.18578; Feng-Hong/WINO-DLLM LLaDA/decoding.py"
    DEFAULTS = {"threshold": 0.6, "back_threshold": 0.9}
    PARAMS = {"back_threshold": Range(0.0, 1.0)}
    ranks = MOST_RANKS
    revises = True
    replica_count = 1

    def __init__(self, params: Params, length: int) -> None:
        self._threshold, self._back_threshold = params.number("threshold"), params.number("back_threshold")
        self._block, self._came = -1, UNBOUNDED  # the lane, and the commits of the forward before

    def replicas(self, lane: Lane, mask_id: int) -> tuple[Replica, ...]:
        return (Replica(np.full(lane.end - lane.start, mask_id, np.int32)),)

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        requests, lanes, open_, confidence = view.requests, view.lanes.lanes, view.open, view.confidence
        came = np.array([rule._before(lane) for rule, lane in zip(rules, lanes, strict=True)])
        threshold = view.each([rule._threshold for rule in rules])
        back_threshold = view.each([rule._back_threshold for rule in rules])
        share = (requests.count(open_).astype(np.float32) * SHARE).astype(np.intp)
        above: Bools = open_ & (confidence > threshold)
        most = np.where(requests.any(above), np.minimum(np.maximum(share, LEAST), MOST), 1)
        chosen = requests.top(confidence, above | (open_ & ~view.each(requests.any(above))), most)
        tokens = np.where(chosen, view.tokens, view.canvas_tokens)
        commits = requests.count(chosen)
        if view.replica is not None:
            again = np.where(open_, np.inf, view.replica.probability(view.canvas_tokens))
            doubted = view.replica.there & (again < back_threshold) & view.each(commits > 1)
            tokens[requests.top(-again, doubted, came - 1)] = view.mask_id
        for rule, lane, number in zip(rules, lanes, commits.tolist(), strict=True):
            rule._block, rule._came = lane.id, number
        return CommitDecision(tokens)

    def _before(self, lane: Lane) -> int:
        """The commits of the forward before in this lane."""
        return self._came if lane.id == self._block else UNBOUNDED
