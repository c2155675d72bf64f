"""Confidence extrapolation: a position whose score is rising may commit before the score reaches the threshold.

Source: arXiv 2605.30753 (TSPD and CE), of which only the outline is public. A Kalman filter of constant velocity tracks
level and speed of every open position's score. Where what lies to its left is settled, the filter looks some steps
ahead: the score counts as the lower bound of the forecast, if that is higher. A doubtful or oscillating score has a
wide forecast and gains nothing. The paper's constants are not public; those here are ours, and only the horizon was
varied: on 40 problems 1, 2 and 4 steps made almost no difference. The scale is the logit, and a proposal that changes
starts its filter again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ....contract import Doubles
from ...params import Params, Range, Values
from ..base import StepView
from ..segments import Bools, Longs

PARAMS: Mapping[str, Values] = {"horizon": Range(0, 16, whole=True), "coverage": Range(0.0, 1.0)}
DEFAULTS: Mapping[str, object] = {"horizon": 2, "coverage": 0.8}

EDGE = 1e-6  # scores are clipped to [EDGE, 1 - EDGE]
OBSERVED = 0.25  # variance of an observation
DRIFT = 0.05  # variance that a step adds to the speed
FRESH = 1.0  # variance of the speed at the first observation
CAUTION = 1.0  # standard deviations of the lower bound below the mean
MIDDLE = 1.2816  # standard deviations that bound the middle 80 % of a normal distribution
UNSEEN = -1  # no token


class Forecast:
    """Level and speed of the scores of one request by canvas position, and the three moments of their covariance."""

    def __init__(self, params: Params, length: int) -> None:
        """It leaves scores as they are if the parameter `extrapolate` is false."""
        self.active = params.get("extrapolate") is not False
        self.horizon, self.coverage = params.integer("horizon"), params.number("coverage")
        self.token = np.full(length, UNSEEN, np.int32)
        self.state = np.zeros((length, 5))


def raised(forecasts: Sequence[Forecast], view: StepView, score: Doubles) -> Doubles:
    """The higher of `score` [n] and its forecast; those of the requests [r] of a view are all active, or none is. Call
    it once in each step, after all that may raise."""
    if not forecasts[0].active:
        return score
    horizon, coverage = np.array([(one.horizon, one.coverage) for one in forecasts]).T
    kept_tokens, kept_states = [one.token for one in forecasts], [one.state for one in forecasts]
    same = view.gather(kept_tokens) == view.tokens
    observed = np.clip(score, EDGE, 1.0 - EDGE)
    state = _observed(view.gather(kept_states), np.log(observed / (1.0 - observed)), same)
    ahead = _lower_bound(state, view.each(horizon))
    sure = same & (_covered(view, same) >= view.each(coverage))
    view.scatter(kept_tokens, view.tokens)
    view.scatter(kept_states, state.T)
    return np.where(sure, np.maximum(score, 1.0 / (1.0 + np.exp(-ahead))), score)


def cautious(forecasts: Sequence[Forecast], view: StepView) -> tuple[Doubles, Bools]:
    """[n] the lower end of the middle 80 % of the forecast for the next step, and where the score falls; after
    `raised`."""
    mean, speed, spread, joint, pace = view.gather([one.state for one in forecasts]).T
    bound = mean + speed - MIDDLE * np.sqrt(spread + 2.0 * joint + pace)
    return 1.0 / (1.0 + np.exp(-bound)), speed < 0


def _observed(before: Doubles, level: Doubles, same: Bools) -> Doubles:
    """The state [5, n] after a step with scores at this `level`, from that `before` [n, 5]; new where the proposal is
    not the `same`."""
    mean, speed, spread, joint, pace = np.ascontiguousarray(before.T)
    spread = spread + 2.0 * joint + pace
    joint = joint + pace
    pace = pace + DRIFT
    surprise = level - (mean + speed)
    gain, pull = spread / (spread + OBSERVED), joint / (spread + OBSERVED)
    state = np.stack(
        (
            mean + speed + gain * surprise,
            speed + pull * surprise,
            spread * (1.0 - gain),
            joint * (1.0 - gain),
            pace - pull * joint,
        )
    )
    fresh = np.flatnonzero(~same)
    state[0, fresh] = level[fresh]
    state[1:, fresh] = np.array([[0.0], [OBSERVED], [0.0], [FRESH]])
    return state


def _lower_bound(state: Doubles, horizon: Doubles) -> Doubles:
    """[n] the best lower bound of the forecasts within the `horizon` [n], on the scale of the state."""
    mean, speed, spread, joint, pace = state
    best = np.full(mean.shape, -np.inf)
    for steps in range(1, int(horizon.max(initial=0.0)) + 1):
        drift = DRIFT * (steps - 1) * steps * (2 * steps - 1) / 6.0  # what the speeds in between may do
        spread_then = spread + 2.0 * steps * joint + steps * steps * pace + drift
        bound = mean + steps * speed - CAUTION * np.sqrt(spread_then)
        best = np.where(steps <= horizon, np.maximum(best, bound), best)
    return best


def _covered(view: StepView, same: Bools) -> Doubles:
    """[n] the share of the positions before one in its lane that are committed or proposed again."""
    lanes, settled = view.lanes, ~view.open | same
    counted: Longs = np.cumsum(settled) - settled
    before = np.arange(len(same)) - lanes.spread(lanes.starts)
    shares = (counted - lanes.spread(counted[lanes.starts]) + (before == 0)) / np.maximum(before, 1)
    return np.where(lanes.inside, shares, 0.0)
