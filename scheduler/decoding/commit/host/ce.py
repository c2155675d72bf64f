"""CE: a position commits once its confidence is about to reach the threshold, and may wait while it is unsteady."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from ....contract import Doubles
from ...params import OFF, Params, Range
from ..base import CommitDecision, HostCommitRule, StepView
from ..segments import Bools
from ..shared import forecast

STEADY = 1 << 30  # forwards without another proposal, of a position that has had only one


class Extrapolated(HostCommitRule):
    """An open position commits if its confidence, or the lower bound of its forecast within `horizon` steps, reaches
    `threshold`. Forecasts need a settled share of `coverage` to the left. Where nothing passes, the best commits.

    The other half is off by default. A position that passes waits where its proposal was another one in the last
    `wait_changes` forwards, or where its confidence falls, and a cautious forecast for the next forward is more than
    `wait_margin` below the threshold. It waits at most `wait_most` forwards in all, and not if nothing else commits.

    Source: arXiv 2605.30753, CE on top of Fast-dLLM; `forecast` says which parts are ours. The paper stabilizes tokens
    that oscillate or are not confident enough; when they wait, and how long, is ours.
    """

    NAME = "ce"
    SOURCE = "after arXiv 2605.30753, of which the code is not public"
    DEFAULTS = {"threshold": 0.9, **forecast.DEFAULTS, "wait_changes": 0, "wait_margin": OFF, "wait_most": 3}
    PARAMS = {
        **forecast.PARAMS,
        "wait_changes": Range(0, 64, whole=True),
        "wait_margin": Range(0.0, 1.0, words=(OFF,)),
        "wait_most": Range(1, 4096, whole=True),
    }

    def __init__(self, params: Params, length: int) -> None:
        self._threshold, self._forecast = params.number("threshold"), forecast.Forecast(params, length)
        self._changes, self._most = params.integer("wait_changes"), params.integer("wait_most")
        self._margin = params.threshold("wait_margin")
        self._steady = np.full(length, STEADY, np.intp)  # by canvas position: forwards since its proposal changed
        self._waited = np.zeros(length, np.intp)  # forwards for which it has waited

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        threshold = view.each([rule._threshold for rule in rules])
        forecasts, steady = [rule._forecast for rule in rules], [rule._steady for rule in rules]
        last = view.gather([one.token for one in forecasts])
        changed = (last != forecast.UNSEEN) & (last != view.tokens)
        since = np.where(changed, 0, np.minimum(view.gather(steady) + 1, STEADY))
        raised = forecast.raised(forecasts, view, view.confidence)
        cautious, falls = forecast.cautious(forecasts, view)
        waits = cls._waits(rules, view, since, falls & (cautious < threshold - view.each([r._margin for r in rules])))
        chosen = view.at_least(np.where(waits, -np.inf, raised), threshold, raised)
        waited = [rule._waited for rule in rules]
        view.scatter(steady, since)
        view.scatter(waited, view.gather(waited) + (waits & (raised >= threshold) & ~chosen))
        return view.commit(chosen)

    @staticmethod
    def _waits(rules: Sequence[Extrapolated], view: StepView, since: Doubles, doubtful: Bools) -> Bools:
        """[n] the positions that wait, if they pass: `since` [n] forwards their proposal has been the same."""
        unsteady: Bools = doubtful | (since < view.each([rule._changes for rule in rules]))
        return unsteady & (view.gather([rule._waited for rule in rules]) < view.each([rule._most for rule in rules]))
