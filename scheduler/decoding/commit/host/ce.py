"""CE: a position commits once its confidence is about to reach the threshold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from ...params import Params
from ..base import CommitDecision, HostCommitRule, StepView
from ..shared import forecast


class Extrapolated(HostCommitRule):
    """An open position commits if its confidence, or the lower bound of its forecast within `horizon` steps, reaches
    `threshold`. Forecasts need a settled share of `coverage` to the left. Where nothing passes, the best commits.

    Source: arXiv 2605.30753, CE on top of Fast-dLLM; `forecast` says which parts are ours.
    """

    NAME = "ce"
    SOURCE = "after arXiv 2605.30753, of which the code is not public"
    DEFAULTS = {"threshold": 0.9, **forecast.DEFAULTS}
    PARAMS = forecast.PARAMS

    def __init__(self, params: Params, length: int) -> None:
        self._threshold, self._forecast = params.number("threshold"), forecast.Forecast(params, length)

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        threshold = view.each([rule._threshold for rule in rules])
        raised = forecast.raised([rule._forecast for rule in rules], view, view.confidence)
        return view.commit(view.at_least(raised, threshold))
