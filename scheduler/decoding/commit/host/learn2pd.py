"""Learn2PD: a filter has learnt from the confidences of a whole block which of its proposals are final."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....contract import Doubles, Floats
from ...params import Choice, Params
from ..base import Bools, CommitDecision, HostCommitRule, StepView, best
from ..shared import forecast
from ..shared.weights import certainty, weights

WINDOW = 32  # confidences that the filter reads at once


class Filter:
    """Two layers of `WINDOW` units each, 2,112 weights. Its window begins with the first open position, and filled
    positions count as certain: so it serves blocks of any length, lanes, and caches that do not compute filled
    positions. The authors' window is the block, with the confidence in what the model would say at filled positions
    now, and its input is the confidence itself: here it is `certainty`, which separates 0.99 from 0.999.
    """

    def __init__(self, learnt: Mapping[str, Floats]) -> None:
        self._learnt = learnt

    def scores(self, windows: Floats) -> Floats:
        """The probabilities [any, WINDOW] that proposals of this certainty [any, WINDOW] are final."""
        learnt = self._learnt
        inner = np.maximum(windows @ learnt["inner"] + learnt["inner_bias"], 0.0)
        scores: Floats = 1.0 / (1.0 + np.exp(-np.clip(inner @ learnt["outer"] + learnt["outer_bias"], -40.0, 40.0)))
        return scores


class Learn2PD(HostCommitRule):
    """The most confident open position of the leftmost lane commits, and in all lanes each one to which the filter
    gives at least `threshold`.

    With `eotp` (end-of-text prediction) the canvas is cut after the first end token that the filter accepts; if there
    is none, after the most confident one that is proposed anywhere in sight. It needs the logits of everything after
    the block, and the drafts of a lane policy are not written. With `extrapolate`, `forecast` raises the filter's
    score.

    Source: arXiv 2509.25188; ims-kdks/Learning-to-Parallel-Decoding llada/generate.py. The weights are ours, since the
    authors' belong to other models: `asynclane.training.controllers`. The authors cut at `<|endoftext|>` only, this
    rule at every end token of the tokenizer.
    """

    NAME = "learn2pd"
    SOURCE = "arXiv 2509.25188; ims-kdks/Learning-to-Parallel-Decoding, with weights of our own"
    DEFAULTS = {"threshold": 0.96, "eotp": True, "extrapolate": False, **forecast.DEFAULTS}
    PARAMS = {"eotp": Choice((True, False)), "extrapolate": Choice((True, False)), **forecast.PARAMS}

    def __init__(self, params: Params, length: int) -> None:
        self._threshold, self.sees_ahead = params.number("threshold"), params["eotp"] is True
        self._forecast, self._filter = forecast.Forecast(params, length), Filter(weights("learn2pd"))

    def choose(self, view: StepView) -> CommitDecision:
        score = self._forecast.raised(view, self._score(view))
        accepted = view.open & (score >= self._threshold)
        chosen = accepted.copy()
        for _, here, first in view.lane_slices:
            if first and view.open[here].any():
                chosen[here][best(view.confidence[here], view.open[here])] = True
        return view.commit(chosen)._replace(end=self._end(view, accepted) if self.sees_ahead else None)

    def _score(self, view: StepView) -> Doubles:
        """[n] of the open positions in lanes, 0 elsewhere."""
        score = np.zeros(len(view.positions))
        for _, here, _ in view.lane_slices:
            if (open_ := view.open[here]).any():
                score[here] = self._of_lane(open_, view.confidence[here])
        return score

    def _of_lane(self, open_: Bools, confidence: Doubles) -> Doubles:
        first, size = int(open_.argmax()), len(open_)
        windows = np.ones(-(-(size - first) // WINDOW) * WINDOW, np.float32)
        windows[: size - first] = np.where(open_, certainty(confidence), 1.0)[first:]
        scores = np.zeros(size)
        scores[first:] = self._filter.scores(windows.reshape(-1, WINDOW)).reshape(-1)[: size - first]
        return np.where(open_, scores, 0.0)

    def _end(self, view: StepView, accepted: Bools) -> int | None:
        ends = view.open & view.ends[view.tokens]
        if not ends.any():
            return None
        sure = ends & accepted
        return int(view.positions[sure.argmax() if sure.any() else best(view.confidence, ends)])
