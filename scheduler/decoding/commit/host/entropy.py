"""Entropy: a position commits once its whole distribution is sharp, not only its best token likely."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from ...params import Params, Range
from ..base import CommitDecision, HostCommitRule, StepView
from ..segments import NONE


class Entropy(HostCommitRule):
    """Open positions with an entropy of at most `entropy_threshold` nats commit. The lowest of all lanes always does,
    and the lowest of the leftmost lane if nothing else there does. `position_penalty` nats are added for each position
    after the first open one of the lane. Sources: d3LLM, arXiv 2601.07568; the penalty is WeDLM's, arXiv 2512.22737."""

    NAME = "entropy"
    SOURCE = "arXiv 2601.07568; hao-ai-lab/d3LLM"
    DEFAULTS = {"entropy_threshold": 0.5, "position_penalty": 0.0}
    PARAMS = {"entropy_threshold": Range(0.0, 20.0), "position_penalty": Range(0.0, 20.0)}

    def __init__(self, params: Params, length: int) -> None:
        self._threshold, self._penalty = params.number("entropy_threshold"), params.number("position_penalty")

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        sharpness, penalty = -view.entropy, np.array([rule._penalty for rule in rules])
        if penalty.any():
            lanes, first = view.lanes, view.positions[view.lanes.first(view.open)]  # any position of a full lane
            sharpness -= lanes.spread(penalty[lanes.owner]) * (view.positions - lanes.spread(first))
        chosen = view.at_least(sharpness, -view.each([rule._threshold for rule in rules]))
        lowest = view.requests.best(sharpness, view.open & view.lanes.inside)
        chosen[lowest[lowest != NONE]] = True
        return view.commit(chosen)
