"""Entropy: a position commits once its whole distribution is sharp, not only its best token likely."""

from __future__ import annotations

from ...params import Params, Range
from ..base import CommitDecision, HostCommitRule, StepView, best


class Entropy(HostCommitRule):
    """Open positions with an entropy of at most `entropy_threshold` nats commit. The lowest of all lanes always does,
    and the lowest of the leftmost lane if nothing else there does. Source: d3LLM, arXiv 2601.07568."""

    NAME = "entropy"
    SOURCE = "arXiv 2601.07568; hao-ai-lab/d3LLM"
    DEFAULTS = {"entropy_threshold": 0.5}
    PARAMS = {"entropy_threshold": Range(0.0, 20.0)}

    def __init__(self, params: Params, length: int) -> None:
        self._threshold = params.number("entropy_threshold")

    def choose(self, view: StepView) -> CommitDecision:
        lanes, sharpness = view.lanes, -view.entropy
        chosen = view.at_least(sharpness, -self._threshold)
        if view.open[lanes].any():
            chosen[best(sharpness[lanes], view.open[lanes])] = True
        return view.commit(chosen)
