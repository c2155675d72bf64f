"""Entropy: a position commits once its whole distribution is sharp, not just the best token's share of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from ...params import Params, Range, Values
from ..base import CommitDecision, HostRuleDefaults, StepView, best


class Entropy(HostRuleDefaults):
    """Open positions with an entropy of at most `entropy_threshold` nats commit, the lowest of all lanes in any case,
    and so does that of the leftmost lane where nothing else does. Source: d3LLM, arXiv 2601.07568."""

    PARAMS: Mapping[str, Values] = {"entropy_threshold": Range(0.0, 20.0)}

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold

    @classmethod
    def of(cls, knobs: Params, length: int) -> Self:
        return cls(knobs.number("entropy_threshold"))

    def choose(self, view: StepView) -> CommitDecision:
        lanes, sharpness = view.lanes, -view.entropy
        chosen = view.at_least(sharpness, -self._threshold)
        if view.open[lanes].any():
            chosen[best(sharpness[lanes], view.open[lanes])] = True
        return view.commit(chosen)
