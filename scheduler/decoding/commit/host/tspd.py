"""TSPD: a small recurrent controller has learnt from how a proposal's confidence develops when it is final."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Self

import numpy as np

from ....contract import Doubles, Floats
from ...params import Choice, Params
from ..base import CommitDecision, StepView
from ..segments import Longs, whole_rows
from ..shared import forecast
from ..shared.weights import LEAST_DOUBT, LearntRule, Observed, Weights, certainty, product

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

    SHAPES = {
        "input": (4, 3 * WIDTH),
        "input_bias": (3 * WIDTH,),
        "recurrent": (WIDTH, 3 * WIDTH),
        "recurrent_bias": (3 * WIDTH,),
        "head": (WIDTH,),
        "head_bias": (1,),
    }

    def __init__(self, learnt: Weights) -> None:
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


class TSPD(LearntRule):
    """An open position commits if the controller gives it at least `threshold`; where none of the first lane passes,
    its most confident one does. The controller's state is kept by canvas position from the first step in which a lane
    contains it. With `extrapolate`, `forecast` raises the controller's score.

    Source: arXiv 2605.30753, of which only the outline is public: the unit, its width, the scale of the features and
    the threshold are ours, and so are the weights: `asynclane.training.controllers`. They know a model by its
    probabilities alone, so these serve any model; `asynclane train-controller` makes those of one.
    """

    NAME = "tspd"
    SOURCE = "after arXiv 2605.30753, of which the code is not public, with weights of our own"
    DEFAULTS = {"threshold": 0.5, "extrapolate": False, **forecast.DEFAULTS}
    PARAMS = {"extrapolate": Choice((True, False)), **forecast.PARAMS}
    SHAPES = Controller.SHAPES

    def __init__(self, params: Params, length: int, learnt: Weights | None = None) -> None:
        super().__init__(params, length, learnt)
        self._threshold, self._forecast = params.number("threshold"), forecast.Forecast(params, length)
        self._controller = Controller(self.learnt)
        self._state = np.zeros((length, WIDTH), np.float32)
        self._confidence = np.full(length, np.nan)  # of the step before

    @property
    def kind(self) -> Hashable:
        return self._forecast.active

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        threshold, forecasts = view.each([rule._threshold for rule in rules]), [rule._forecast for rule in rules]
        observed, kept = cls.observe(rules, view), [rule._confidence for rule in rules]
        score, before = np.zeros(len(view.open)), view.gather(kept)
        score[observed.at] = cls.scores(rules, view, observed)
        before[observed.at] = view.confidence[observed.at]
        view.scatter(kept, before)
        score = forecast.raised(forecasts, view, score)
        return view.commit(view.at_least(score, threshold, otherwise=view.confidence))

    @classmethod
    def observe(cls, rules: Sequence[Self], view: StepView) -> Observed:
        lanes, open_ = view.lanes, view.open
        at = np.flatnonzero(open_ & lanes.inside)
        distance = at - lanes.first(open_)[lanes.index[at]]
        momentum = np.nan_to_num(view.confidence[at] - view.gather([rule._confidence for rule in rules])[at])
        seen = features(view.confidence[at], view.entropy[at], momentum, distance)
        return Observed(at, seen, np.arange(len(at)))

    @classmethod
    def scores(cls, rules: Sequence[Self], view: StepView, observed: Observed) -> Doubles:
        kept = [rule._state for rule in rules]
        states = view.gather(kept)
        found, after = rules[0]._controller.step(observed.seen, states.take(observed.at, axis=0))
        whole_rows(states)[observed.at] = whole_rows(after)
        view.scatter(kept, states)
        return found
