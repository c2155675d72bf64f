"""Learn2PD: a filter has learnt from the confidences of a whole block which of its proposals are final."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from ....contract import Doubles, Floats
from ...params import Choice, Params, Values
from ..base import (
    Bools,
    CommitDecision,
    HostRuleDefaults,
    LaneSlice,
    StepView,
    best,
)
from ..shared.forecast import PARAMS as FORECAST_PARAMS
from ..shared.forecast import Forecast
from ..shared.weights import certainty, weights

WINDOW = 32  # confidences that the filter sees at once


class Filter:
    """Two layers of `WINDOW` units each, 2,112 weights. Its window begins with the first open position, and what is
    filled counts as certain: so it serves blocks of any length, lanes, and caches that compute nothing of what is
    filled. The authors' window is the block, with the confidence in what the model would say at filled positions now,
    and they feed the confidence itself: here it is `certainty`, which tells 0.99 from 0.999.
    """

    def __init__(self, learnt: Mapping[str, Floats]) -> None:
        self._learnt = learnt

    def scores(self, windows: Floats) -> Floats:
        """The probabilities [any, WINDOW] that proposals of this certainty [any, WINDOW] are final."""
        learnt = self._learnt
        inner = np.maximum(windows @ learnt["inner"] + learnt["inner_bias"], 0.0)
        scores: Floats = 1.0 / (1.0 + np.exp(-np.clip(inner @ learnt["outer"] + learnt["outer_bias"], -40.0, 40.0)))
        return scores


class Learn2PD(HostRuleDefaults):
    """The most confident open position commits, and each that the filter gives `threshold` or more. In lanes behind the
    first only the latter do.

    With `eotp` (end-of-text prediction) the canvas is cut behind the first end token that the filter takes; if there is
    none, behind the most confident one that is proposed anywhere in sight. It needs the logits of all that lies behind
    the block, and a lane policy's drafts are not written. With `extrapolate` `forecast` raises the filter's score.

    Source: arXiv 2509.25188; ims-kdks/Learning-to-Parallel-Decoding llada/generate.py. The weights are ours, since the
    authors' belong to other models: `asynclane.training.controllers`. The authors cut at `<|endoftext|>` alone, we at
    every end token of the tokenizer.
    """

    PARAMS: Mapping[str, Values] = {
        "eotp": Choice((True, False)),
        "extrapolate": Choice((True, False)),
        **FORECAST_PARAMS,
    }

    def __init__(self, threshold: float, eotp: bool, forecast: Forecast | None) -> None:
        self._threshold, self._forecast, self.sees_ahead = threshold, forecast, eotp
        self._filter = Filter(weights("learn2pd"))

    @classmethod
    def of(cls, knobs: Params, length: int) -> Self:
        forecast = Forecast.of(knobs, length) if knobs["extrapolate"] is True else None
        return cls(knobs.number("threshold"), knobs["eotp"] is True, forecast)

    def choose(self, view: StepView) -> CommitDecision:
        score, open_ = self._score(view), view.open
        if self._forecast is not None:
            score = self._forecast.raised(view, score)
        taken = open_ & (score >= self._threshold)
        chosen = taken.copy()
        for part in view.lane_slices:
            if part.first and open_[part.here].any():
                chosen[part.here][best(view.confidence[part.here], open_[part.here])] = True
        return view.commit(chosen)._replace(end=self._end(view, taken) if self.sees_ahead else None)

    def _score(self, view: StepView) -> Doubles:
        """[n] of the open positions in lanes, 0 elsewhere."""
        score, open_ = np.zeros(len(view.positions)), view.open
        for part in view.lane_slices:
            score[part.here] = self._of_part(part, view, open_)
        return score

    def _of_part(self, part: LaneSlice, view: StepView, open_: Bools) -> Doubles:
        here, confidence = open_[part.here], view.confidence[part.here]
        scores = np.zeros(len(here))
        if here.any():
            first = int(here.argmax())
            windows = np.ones(-(-(len(here) - first) // WINDOW) * WINDOW, np.float32)
            windows[: len(here) - first] = np.where(here, certainty(confidence), 1.0)[first:]
            scores[first:] = self._filter.scores(windows.reshape(-1, WINDOW)).reshape(-1)[: len(here) - first]
        return np.where(here, scores, 0.0)

    def _end(self, view: StepView, taken: Bools) -> int | None:
        ends = view.open & view.ends[view.tokens]
        if not ends.any():
            return None
        sure = ends & taken
        at = int(sure.argmax()) if sure.any() else best(view.confidence, ends)
        return int(view.positions[at])
