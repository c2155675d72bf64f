"""WINO: commits freely, and takes back what the network would not say again.

Source: arXiv 2507.18578; Feng-Hong/WINO-DLLM LLaDA/decoding.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from ....contract import MOST_RANKS
from ...lane_tree import Lane
from ...params import Params, Range, Values
from ..base import (
    Bools,
    CommitDecision,
    HostRuleDefaults,
    Replica,
    StepView,
    best,
    top,
)

SHARE = np.float32(0.7)  # of a block's masks that a call may commit, but
LEAST, MOST = 5, 20  # so many at least and at most
UNBOUNDED = 30  # what counts as the commits of the call before a block's first


class Wino(HostRuleDefaults):
    """Open positions above `threshold` confidence commit, of too many the best, or else the best one. Each position of
    the block has a shadow: a mask that sees everything, other shadows included, but its own token. Where more than one
    commits, tokens that had committed before are taken back if they are less probable than `back_threshold` at their
    shadows; of as many as the call before had committed, or more, the least probable, so that fewer go than came.

    As in the authors' code. A token that is not among a position's likeliest has probability 0.
    """

    PARAMS: Mapping[str, Values] = {"back_threshold": Range(0.0, 1.0)}

    ranks = MOST_RANKS
    revises = True
    replica_count = 1

    def __init__(self, threshold: float, back_threshold: float) -> None:
        self._threshold, self._back_threshold = threshold, back_threshold
        self._block, self._came = -1, UNBOUNDED  # the lane, and what its call before has committed

    @classmethod
    def of(cls, knobs: Params, length: int) -> Self:
        return cls(knobs.number("threshold"), knobs.number("back_threshold"))

    def replicas(self, lane: Lane, mask_id: int) -> tuple[Replica, ...]:
        return (Replica(np.full(lane.end - lane.start, mask_id, np.int32)),)

    def choose(self, view: StepView) -> CommitDecision:
        (part,) = view.lane_slices
        if part.lane.id != self._block:
            self._block, self._came = part.lane.id, UNBOUNDED
        chosen = self._chosen(view)
        tokens = np.where(chosen, view.tokens, view.canvas_tokens)
        came = int(chosen.sum())
        if came > 1 and view.replica is not None:
            tokens[self._withdrawn(view)] = view.mask_id
        self._came = came
        return CommitDecision(tokens)

    def _chosen(self, view: StepView) -> Bools:
        """[n] what commits."""
        open_, confidence = view.open, view.confidence
        most = min(max(int(np.float32(open_.sum()) * SHARE), LEAST), MOST)
        chosen: Bools = open_ & (confidence > self._threshold)
        if chosen.sum() > most:
            chosen[top(confidence, chosen)[most:]] = False
        elif not chosen.any():
            chosen[best(confidence, open_)] = True
        return chosen

    def _withdrawn(self, view: StepView) -> Bools:
        """[n] what is taken back."""
        if view.replica is None:
            return np.zeros(len(view.positions), np.bool_)
        again = np.where(view.open, np.inf, view.replica.probability(view.canvas_tokens))
        doubted: Bools = again < self._back_threshold
        if doubted.sum() >= self._came:
            doubted[top(-again, doubted)[self._came - 1 :]] = False
        return doubted
