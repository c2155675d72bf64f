"""TSPD: a small recurrent controller has learnt from how a proposal's confidence develops when it is final."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Self

import numpy as np

from ....contract import Doubles, Floats
from ...params import Choice, Params
from ..base import CommitDecision, HostCommitRule, StepView
from ..segments import Longs, whole_rows
from ..shared import forecast
from ..shared.weights import LEAST_DOUBT, certainty, product, weights

WIDTH = 24  # of the hidden state
REACH = 32  # positions after the first open one from which on all are equally far
MOST_ENTROPY = 10.0  # nats; the entropy of what replaces an end token has no other bound


def features(confidence: Doubles, entropy: Doubles, momentum: Doubles, distance: Doubles | Longs) -> Floats:
    """[n, 4] from confidence, entropy, the change of confidence since the step before, and the distance from the first
    open position of the lane. Confidence and entropy count by their magnitudes."""
    spread = -np.log10(np.clip(entropy, LEAST_DOUBT, MOST_ENTROPY)) / 4.0
    columns = certainty(confidence), spread, momentum, np.clip(distance / REACH, 0.0, 1.0)
    return np.stack(columns, 1).astype(np.float32)


class Controller:
    """A gated recurrent unit of `WIDTH`, the same for all positions: 2,185 weights, gates in the order reset, update,
    new."""

    def __init__(self, learnt: Mapping[str, Floats]) -> None:
        self._learnt = learnt

    def step(self, seen: Floats, state: Floats) -> tuple[Doubles, Floats]:
        """The probability [n] that a proposal is final, and the state [n, WIDTH] after the features `seen` [n, 4]."""
        learnt = self._learnt
        fresh = product(seen, learnt["input"]) + learnt["input_bias"]
        kept = product(state, learnt["recurrent"]) + learnt["recurrent_bias"]
        gates = _sigmoid(fresh[:, : 2 * WIDTH] + kept[:, : 2 * WIDTH])
        reset, update = gates[:, :WIDTH], gates[:, WIDTH:]
        new = np.tanh(fresh[:, 2 * WIDTH :] + reset * kept[:, 2 * WIDTH :])
        state = new + update * (state - new)
        return _sigmoid(product(state, learnt["head"]) + learnt["head_bias"]).astype(np.float64), state


def _sigmoid(x: Floats) -> Floats:
    result: Floats = 0.5 + 0.5 * np.tanh(0.5 * x)
    return result


class TSPD(HostCommitRule):
    """An open position commits if the controller gives it at least `threshold`; where none of the first lane passes,
    its most confident one does. The controller's state is kept by canvas position from the first step in which a lane
    contains it. With `extrapolate`, `forecast` raises the controller's score.

    Source: arXiv 2605.30753, of which only the outline is public: the unit, its width, the scale of the features and
    the threshold are ours, and so are the weights: `asynclane.training.controllers`. They know a model by its
    probabilities alone, so one controller serves all.
    """

    NAME = "tspd"
    SOURCE = "after arXiv 2605.30753, of which the code is not public, with weights of our own"
    DEFAULTS = {"threshold": 0.5, "extrapolate": False, **forecast.DEFAULTS}
    PARAMS = {"extrapolate": Choice((True, False)), **forecast.PARAMS}

    def __init__(self, params: Params, length: int) -> None:
        self._threshold, self._forecast = params.number("threshold"), forecast.Forecast(params, length)
        self._controller = Controller(weights("tspd"))
        self._state = np.zeros((length, WIDTH), np.float32)
        self._confidence = np.full(length, np.nan)  # of the step before

    @property
    def kind(self) -> Hashable:
        return self._forecast.active

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        lanes, open_ = view.lanes, view.open
        threshold, forecasts = view.each([rule._threshold for rule in rules]), [rule._forecast for rule in rules]
        kept_states, kept_confidence = [rule._state for rule in rules], [rule._confidence for rule in rules]
        states, before = view.gather(kept_states), view.gather(kept_confidence)
        at = np.flatnonzero(open_ & lanes.inside)
        distance = at - lanes.first(open_)[lanes.index[at]]
        momentum = np.nan_to_num(view.confidence[at] - before[at])
        seen = features(view.confidence[at], view.entropy[at], momentum, distance)
        score = np.zeros(len(open_))
        score[at], after = rules[0]._controller.step(seen, states.take(at, axis=0))
        whole_rows(states)[at] = whole_rows(after)
        before[at] = view.confidence[at]
        view.scatter(kept_states, states)
        view.scatter(kept_confidence, before)
        score = forecast.raised(forecasts, view, score)
        return view.commit(view.at_least(score, threshold, otherwise=view.confidence))
