"""TSPD: a small recurrent controller has learnt from how a proposal's confidence develops when it is final."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from ....contract import Doubles, Floats
from ...params import Choice, Params, Values
from ..base import CommitDecision, HostRuleDefaults, StepView
from ..shared.forecast import PARAMS as FORECAST_PARAMS
from ..shared.forecast import Forecast
from ..shared.weights import LEAST_DOUBT, certainty, weights

WIDTH = 24  # of the hidden state
REACH = 32  # positions behind the first open one from which on all are equally far
MOST_ENTROPY = 10.0  # nats; what stands in for an end token has no other bound


def features(confidence: Doubles, entropy: Doubles, momentum: Doubles, distance: Doubles) -> Floats:
    """[n, 4] of positions with this confidence and entropy, the change of the former since the step before, and the
    distance from the first open position of the lane. Confidence and entropy count by their magnitudes."""
    spread = -np.log10(np.clip(entropy, LEAST_DOUBT, MOST_ENTROPY)) / 4.0
    return np.stack((certainty(confidence), spread, momentum, np.clip(distance / REACH, 0.0, 1.0)), 1).astype(
        np.float32
    )


class Controller:
    """A gated recurrent unit of `WIDTH`, the same for all positions: 2,185 weights, gates in the order reset, update,
    new."""

    def __init__(self, learnt: Mapping[str, Floats]) -> None:
        self._learnt = learnt

    def step(self, seen: Floats, state: Floats) -> tuple[Doubles, Floats]:
        """The probability [n] that a proposal is final, and the state [n, WIDTH] after what was `seen` [n, 4]."""
        learnt = self._learnt
        fresh = seen @ learnt["input"] + learnt["input_bias"]
        kept = state @ learnt["recurrent"] + learnt["recurrent_bias"]
        gates = _sigmoid(fresh[:, : 2 * WIDTH] + kept[:, : 2 * WIDTH])
        reset, update = gates[:, :WIDTH], gates[:, WIDTH:]
        new = np.tanh(fresh[:, 2 * WIDTH :] + reset * kept[:, 2 * WIDTH :])
        state = new + update * (state - new)
        return _sigmoid(state @ learnt["head"] + learnt["head_bias"]).astype(np.float64), state


def _sigmoid(x: Floats) -> Floats:
    result: Floats = 0.5 + 0.5 * np.tanh(0.5 * x)
    return result


class TSPD(HostRuleDefaults):
    """An open position commits if the controller gives it `threshold` or more; where none of the first lane passes, its
    most confident one does. The controller's state is kept by canvas position from the first step in which a lane held
    it. With `extrapolate` the controller's score is raised by `forecast`.

    Source: arXiv 2605.30753, of which only the outline is public: the unit, its width, the scale of the features and
    the threshold are ours, and so are the weights: `asynclane.training.controllers`. They know a model by its
    probabilities alone, so one controller serves all.
    """

    PARAMS: Mapping[str, Values] = {"extrapolate": Choice((True, False)), **FORECAST_PARAMS}

    def __init__(self, threshold: float, length: int, forecast: Forecast | None) -> None:
        self._threshold, self._forecast = threshold, forecast
        self._controller = Controller(weights("tspd"))
        self._state = np.zeros((length, WIDTH), np.float32)
        self._confidence = np.full(length, np.nan)  # of the step before

    @classmethod
    def of(cls, knobs: Params, length: int) -> Self:
        return cls(
            knobs.number("threshold"), length, Forecast.of(knobs, length) if knobs["extrapolate"] is True else None
        )

    def choose(self, view: StepView) -> CommitDecision:
        score = self._score(view)
        if self._forecast is not None:
            score = self._forecast.raised(view, score)
        return view.commit(view.at_least(score, self._threshold, otherwise=view.confidence))

    def _score(self, view: StepView) -> Doubles:
        """[n] of the open positions in lanes, 0 elsewhere; their states go a step on."""
        open_ = view.open
        among, distance = np.zeros_like(open_), np.zeros(len(open_))
        for part in view.lane_slices:
            here = open_[part.here]
            among[part.here] = here
            distance[part.here] = np.arange(len(here)) - (here.argmax() if len(here) else 0)
        positions, confidence = view.positions[among], view.confidence[among]
        momentum = np.nan_to_num(confidence - self._confidence[positions])
        seen = features(confidence, view.entropy[among], momentum, distance[among])
        scores, self._state[positions] = self._controller.step(seen, self._state[positions])
        self._confidence[positions] = confidence
        score = np.zeros(len(open_))
        score[among] = scores
        return score
