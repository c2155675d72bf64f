"""Learn2PD: a filter has learnt from the confidences of a whole block which of its proposals are final."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Self

import numpy as np

from ....contract import Doubles, Floats
from ...params import Choice, Params
from ..base import CommitDecision, StepView
from ..segments import NONE, Bools
from ..shared import forecast
from ..shared.weights import LearntRule, Observed, Weights, certainty, product

WINDOW = 32  # confidences that the filter reads at once


class Filter:
    """Two layers of `WINDOW` units each, 2,112 weights. Its window begins with the first open position, and filled
    positions count as certain: so it serves blocks of any length, lanes, and caches that do not compute filled
    positions. The authors' window is the block, with the confidence in what the model would say at filled positions
    now, and its input is the confidence itself: here it is `certainty`, which separates 0.99 from 0.999.
    """

    SHAPES = {
        "inner": (WINDOW, WINDOW),
        "inner_bias": (WINDOW,),
        "outer": (WINDOW, WINDOW),
        "outer_bias": (WINDOW,),
    }

    def __init__(self, learnt: Weights) -> None:
        self._learnt = learnt

    def scores(self, windows: Floats) -> Floats:
        """The probabilities [any, WINDOW] that proposals of this certainty [any, WINDOW] are final."""
        learnt = self._learnt
        inner = np.maximum(product(windows, learnt["inner"]) + learnt["inner_bias"], 0.0)
        scores: Floats = 1.0 / (
            1.0 + np.exp(-np.clip(product(inner, learnt["outer"]) + learnt["outer_bias"], -40.0, 40.0))
        )
        return scores


class Learn2PD(LearntRule):
    """The most confident open position of the leftmost lane commits, and in all lanes each one to which the filter
    gives at least `threshold`.

    With `eotp` (end-of-text prediction) the canvas is cut after the first end token that the filter accepts; if there
    is none, after the most confident one that is proposed anywhere in sight. It needs the logits of everything after
    the block, and the drafts of a lane policy are not written. With `extrapolate`, `forecast` raises the filter's
    score.

    Source: arXiv 2509.25188; ims-kdks/Learning-to-Parallel-Decoding llada/generate.py. The weights are ours, since the
    authors' belong to other models: `asynclane.training.controllers`; `asynclane train-controller` makes those of a
    model. The authors cut at `<|endoftext|>` only, this
    rule at every end token of the tokenizer.
    """

    NAME = "learn2pd"
    SOURCE = "arXiv 2509.25188; ims-kdks/Learning-to-Parallel-Decoding, with weights of our own"
    DEFAULTS = {"threshold": 0.96, "eotp": True, "extrapolate": False, **forecast.DEFAULTS}
    PARAMS = {"eotp": Choice((True, False)), "extrapolate": Choice((True, False)), **forecast.PARAMS}

    SHAPES = Filter.SHAPES
    OUTPUTS = WINDOW

    def __init__(self, params: Params, length: int, learnt: Weights | None = None) -> None:
        super().__init__(params, length, learnt)
        self._threshold, self.sees_ahead = params.number("threshold"), params["eotp"] is True
        self._forecast, self._filter = forecast.Forecast(params, length), Filter(self.learnt)

    @property
    def kind(self) -> Hashable:
        return self._forecast.active

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        lanes, open_ = view.lanes, view.open
        threshold, forecasts = view.each([rule._threshold for rule in rules]), [rule._forecast for rule in rules]
        observed, score = cls.observe(rules, view), np.zeros(len(open_))
        score[observed.at] = cls.scores(rules, view, observed)
        score = forecast.raised(forecasts, view, score)
        accepted = open_ & (score >= threshold)
        chosen = accepted.copy()
        best = lanes.best(view.confidence, open_)[lanes.forced]
        chosen[best[best != NONE]] = True
        ends = cls._ends(rules, view, accepted) if any(rule.sees_ahead for rule in rules) else None
        return view.commit(chosen)._replace(ends=ends)

    @classmethod
    def observe(cls, rules: Sequence[Self], view: StepView) -> Observed:
        """A lane's windows [any, WINDOW] begin with its first open position."""
        lanes, open_ = view.lanes, view.open
        first = lanes.first(open_)
        sizes = np.where(first == NONE, 0, -(-(lanes.ends - first) // WINDOW) * WINDOW)
        offset = np.cumsum(sizes) - sizes  # of the lane among all windows
        at = np.flatnonzero(open_ & lanes.inside)
        place = at + (offset - first)[lanes.index[at]]
        windows = np.ones(int(sizes.sum()), np.float32)
        windows[place] = certainty(view.confidence[at])
        return Observed(at, windows.reshape(-1, WINDOW), place)

    @classmethod
    def scores(cls, rules: Sequence[Self], view: StepView, observed: Observed) -> Doubles:
        scores: Doubles = rules[0]._filter.scores(observed.seen).reshape(-1)[observed.place].astype(np.float64)
        return scores

    @staticmethod
    def _ends(rules: Sequence[Learn2PD], view: StepView, accepted: Bools) -> list[int | None]:
        """Where each canvas is cut."""
        ends = view.open & view.ends[view.tokens]
        if not ends.any():
            return [None] * len(rules)
        sure, surest = view.requests.first(ends & accepted), view.requests.best(view.confidence, ends)
        at = np.where(sure == NONE, surest, sure).tolist()
        return [
            int(view.positions[place]) if rule.sees_ahead and place != NONE else None
            for rule, place in zip(rules, at, strict=True)
        ]
