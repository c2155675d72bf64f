"""AHD: tokens of later blocks commit early where their distributions have stopped changing."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Self

import numpy as np

from ...params import Params, Range
from ..base import CommitDecision, HostCommitRule, StepView
from ..shared.history import LIKELY, Histories, History


class Ahd(HostCommitRule):
    """In the lanes, open positions commit at `threshold` probability, or else the best does. A position after the lanes
    commits too if it has `threshold` and its drift is below `drift`: the mean divergence (KL, nats) of this
    distribution from those of the last `history` forwards, where the forward t ago weighs exp(-`drift_decay` t).

    Source: arXiv 2604.08964, of which only the abstract and a summary were available. From the paper: the history of 6,
    the form of the weights, the limit of 0.01, and that future blocks commit early. Ours: the decay, that weights sum
    to 1, that the whole history must exist, that a token needs the threshold too, Fast-dLLM's rule within the block,
    and that distributions are sketches (`history`).
    """

    NAME = "ahd"
    SOURCE = "after arXiv 2604.08964, of which only a summary was available: see `Ahd`"
    DEFAULTS = {"threshold": 0.9, "drift": 0.01, "drift_decay": 0.5, "history": 6}
    PARAMS = {"drift": Range(0.0, 100.0), "drift_decay": Range(0.0, 10.0), "history": Range(1, 16, whole=True)}
    ranks = LIKELY
    sees_ahead = True

    def __init__(self, params: Params, length: int) -> None:
        self._threshold, self._drift = params.number("threshold"), params.number("drift")
        self._ages = np.arange(1, params.integer("history") + 1)
        weights = np.exp(-params.number("drift_decay") * self._ages)
        self._weights = weights / weights.sum()
        self._history = History(length, len(self._ages) + 1)

    @property
    def kind(self) -> Hashable:
        return len(self._ages)

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        threshold, drift = view.each([rule._threshold for rule in rules]), view.each([rule._drift for rule in rules])
        weights, ages = np.array([rule._weights for rule in rules]), rules[0]._ages
        histories = Histories([rule._history for rule in rules], view)
        histories.add()
        chosen = view.at_least(view.confidence, threshold)
        ahead = np.flatnonzero(view.open & (view.confidence >= threshold) & ~view.lanes.inside)
        if len(ahead):
            moved = histories.divergence(ahead, np.zeros_like(ages), ages)
            mean = (weights[view.requests.index[ahead]].T * moved).sum(0)
            chosen[ahead] = mean < drift[ahead]
        return view.commit(chosen)
