"""CE: a threshold that confidence need not have reached, if it is about to."""

from __future__ import annotations

from typing import Self

from ...params import Params
from ..base import CommitDecision, HostRuleDefaults, StepView
from ..shared.forecast import PARAMS as FORECAST_PARAMS
from ..shared.forecast import Forecast


class Extrapolated(HostRuleDefaults):
    """An open position commits if its confidence, or the lower bound of where it will be within `horizon` steps, is
    `threshold`; looking ahead needs a settled share of `coverage` to the left. Where nothing passes, the best commits.

    Source: arXiv 2605.30753, CE on top of Fast-dLLM; `forecast` says what of it is ours.
    """

    PARAMS = FORECAST_PARAMS

    def __init__(self, threshold: float, forecast: Forecast) -> None:
        self._threshold, self._forecast = threshold, forecast

    @classmethod
    def of(cls, knobs: Params, length: int) -> Self:
        return cls(knobs.number("threshold"), Forecast.of(knobs, length))

    def choose(self, view: StepView) -> CommitDecision:
        raised = self._forecast.raised(view, view.confidence)
        return view.commit(view.at_least(raised, self._threshold))
