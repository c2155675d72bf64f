"""WINO: commits freely, and takes back what the network would not say again."""

from __future__ import annotations

import numpy as np

from ....contract import MOST_RANKS
from ...lane_tree import Lane
from ...params import Params, Range
from ..base import Bools, CommitDecision, HostCommitRule, Replica, ReplicaView, StepView, best, top

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

    def choose(self, view: StepView) -> CommitDecision:
        ((lane, _, _),) = view.lane_slices
        if lane.id != self._block:
            self._block, self._came = lane.id, UNBOUNDED
        chosen = self._chosen(view)
        tokens = np.where(chosen, view.tokens, view.canvas_tokens)
        came = int(chosen.sum())
        if came > 1 and view.replica is not None:
            tokens[self._withdrawn(view, view.replica)] = view.mask_id
        self._came = came
        return CommitDecision(tokens)

    def _chosen(self, view: StepView) -> Bools:
        """[n] the positions that commit."""
        open_, confidence = view.open, view.confidence
        most = min(max(int(np.float32(open_.sum()) * SHARE), LEAST), MOST)
        chosen: Bools = open_ & (confidence > self._threshold)
        if chosen.sum() > most:
            chosen[top(confidence, chosen)[most:]] = False
        elif not chosen.any():
            chosen[best(confidence, open_)] = True
        return chosen

    def _withdrawn(self, view: StepView, replica: ReplicaView) -> Bools:
        """[n] the tokens that are taken back."""
        again = np.where(view.open, np.inf, replica.probability(view.canvas_tokens))
        doubted: Bools = again < self._back_threshold
        if doubted.sum() >= self._came:
            doubted[top(-again, doubted)[self._came - 1 :]] = False
        return doubted
