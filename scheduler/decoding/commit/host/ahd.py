"""AHD: tokens of later blocks commit early where their distributions have long been the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from ...params import Params, Range, Values
from ..base import CommitDecision, HostRuleDefaults, StepView
from ..shared.history import LIKELY, History


class Ahd(HostRuleDefaults):
    """In the lanes, open positions of `threshold` probability commit, or the best. So do those behind the lanes whose
    drift is below `drift`: the mean divergence (KL, nats) of this call's distribution from those of the last `history`
    calls, in which the call t ago weighs exp(-`drift_decay` t).

    Source: arXiv 2604.08964, of which only the abstract and a summary were known: the history of 6, the weights' form,
    the bar of 0.01 and that future blocks commit early are the paper's. Ours are the decay, that the weights sum to 1,
    that all of the history must be there, that a token needs the threshold too, Fast-dLLM's rule within the block, and
    that distributions are sketches (`history`).
    """

    PARAMS: Mapping[str, Values] = {
        "drift": Range(0.0, 100.0),
        "drift_decay": Range(0.0, 10.0),
        "history": Range(1, 16, whole=True),
    }
    ranks = LIKELY
    sees_ahead = True

    def __init__(self, threshold: float, drift: float, decay: float, calls: int) -> None:
        self._threshold, self._drift, self._calls = threshold, drift, calls
        weights = np.exp(-decay * np.arange(1, calls + 1))
        self._weights = weights / weights.sum()
        self._history: History | None = None

    @classmethod
    def of(cls, knobs: Params, length: int) -> Self:
        return cls(
            knobs.number("threshold"), knobs.number("drift"), knobs.number("drift_decay"), knobs.integer("history")
        )

    def choose(self, view: StepView) -> CommitDecision:
        history = self._history = self._history or History(len(view.canvas), self._calls + 1)
        history.add(view)
        confidence = view.confidence
        chosen = view.at_least(confidence, self._threshold)
        behind = view.lanes.stop
        ahead = behind + np.flatnonzero((view.open & (confidence >= self._threshold))[behind:])
        if len(ahead):
            ages = np.arange(1, self._calls + 1)
            moved = history.divergence(view.positions[ahead], np.zeros_like(ages), ages)
            chosen[ahead] = self._weights @ moved < self._drift
        return view.commit(chosen)
