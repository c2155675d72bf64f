"""Proposals on their way to certainty commit early, others wait, and an answer ends where its end is predicted."""

from __future__ import annotations

import time

import numpy as np
import pytest

from asynclane.scheduler.decoding.commit.base import HostCommitRule, LaneSlice, StepView
from asynclane.scheduler.decoding.commit.host.learn2pd import WINDOW, Filter, Learn2PD
from asynclane.scheduler.decoding.commit.shared.forecast import Forecast
from asynclane.scheduler.decoding.lane_tree import Lane, Role
from asynclane.scheduler.decoding.params import Params
from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.request import Outcome

from ...support.driver import Spec, run
from ...support.fakes import END, MASK, ScriptedExecutor, vocabulary

WORD = 6


def view_of(confidence: list[float], tokens: list[int] | None = None, held: list[int] | None = None) -> StepView:
    """One lane of all positions."""
    size = len(confidence)
    canvas = np.array([MASK] * size if held is None else held, np.int32)
    lane = Lane(0, None, Role.GENERATE, 0, size, size)
    score = np.array(confidence)
    return StepView(
        canvas=canvas,
        mask_id=MASK,
        positions=np.arange(size),
        tokens=np.array([WORD] * size if tokens is None else tokens, np.int32),
        confidence=score,
        entropy=1.0 - score,
        ranked=np.zeros((size, 0), np.int32),
        logprobs=np.zeros((size, 0)),
        lane_slices=(LaneSlice(lane, slice(0, size), first=True),),
        ends=np.arange(20) == END,
        step=0,
    )


def raised(history: list[list[float]], tokens: list[list[int]] | None = None) -> list[float]:
    forecast = Forecast(Params({"horizon": 2, "coverage": 0.8}), length=len(history[0]))
    score = np.zeros(0)
    for step, seen in enumerate(history):
        found = view_of(seen, None if tokens is None else tokens[step])
        score = forecast.raised(found, found.confidence)
    return score.tolist()


def test_a_rising_proposal_counts_as_more_than_it_has() -> None:
    (score,) = raised([[0.3], [0.5], [0.7], [0.85]])
    assert score > 0.9


def test_a_first_sight_a_fall_and_a_swing_gain_nothing() -> None:
    assert raised([[0.85]]) == [0.85]
    assert raised([[0.95], [0.9], [0.85]]) == [0.85]
    assert raised([[0.4], [0.9], [0.3], [0.8]]) == [0.8]


def test_a_proposal_that_changes_starts_anew() -> None:
    history, tokens = [[0.3], [0.5], [0.7], [0.85]], [[WORD]] * 3 + [[WORD + 1]]
    assert raised(history, tokens) == [0.85]


def test_nothing_is_foreseen_behind_what_is_still_changing() -> None:
    history = [[0.5, 0.3], [0.5, 0.5], [0.5, 0.7], [0.5, 0.85]]
    settled, changing = [[WORD, WORD]] * 4, [[WORD + step % 2, WORD] for step in range(4)]
    assert raised(history, settled)[1] > 0.9
    assert raised(history, changing)[1] == 0.85


@pytest.mark.parametrize("name", ["ce", "learn2pd", "tspd"])
def test_the_first_lane_always_goes_on(name: str) -> None:
    rule = rule_of(name)
    doubtful = view_of([0.2, 0.21, 0.2, 0.19])
    assert rule.choose(doubtful).tokens.tolist() == [MASK, WORD, MASK, MASK]


def rule_of(name: str, length: int = 256, **params: object) -> HostCommitRule:
    made = resolve(name, params, length).host_rule
    assert made is not None
    return made()


@pytest.mark.parametrize("name", ["ce", "learn2pd", "tspd"])
def test_what_is_certain_commits_and_what_has_committed_stays(name: str) -> None:
    sure, held = [0.9999] * 8, [7, 7, *[MASK] * 6]
    assert rule_of(name).choose(view_of(sure, held=held)).tokens.tolist() == [7, 7, *[WORD] * 6]


@pytest.mark.parametrize("name", ["ce", "learn2pd", "tspd"])
def test_a_decision_takes_a_fraction_of_a_millisecond(name: str) -> None:
    """For a lane of 64 positions, best of many; what a device's step takes is several."""
    rule, found = rule_of(name, eotp=False) if name == "learn2pd" else rule_of(name), view_of([0.3] * 64)
    times = []
    for _ in range(50):
        started = time.perf_counter()
        rule.choose(found)
        times.append(time.perf_counter() - started)
    assert min(times) < 1e-3


def test_the_filter_serves_lanes_longer_than_its_window() -> None:
    rule = rule_of("learn2pd", eotp=False)
    long = rule.choose(view_of([0.9999] * (2 * WINDOW + 5)))
    assert (long.tokens == WORD).all()


def cutting(ends: list[int], confidence: list[float], takes: float) -> int | None:
    """Where a canvas is cut if the filter gives this score to all."""

    class Same(Filter):
        def scores(self, windows: np.ndarray) -> np.ndarray:
            return np.full(windows.shape, takes, np.float32)

    rule = Learn2PD(Params(Learn2PD.DEFAULTS), len(confidence))
    rule._filter = Same({})
    tokens = [END if at in ends else WORD for at in range(len(confidence))]
    return rule.choose(view_of(confidence, tokens)).end


def test_the_canvas_is_cut_behind_the_first_end_that_is_taken_or_else_the_surest() -> None:
    assert cutting([], [0.5] * 4, takes=1.0) is None
    assert cutting([1, 3], [0.5, 0.6, 0.5, 0.9], takes=1.0) == 1
    assert cutting([1, 3], [0.5, 0.6, 0.5, 0.9], takes=0.0) == 3


def test_an_answer_ends_where_the_canvas_was_cut() -> None:
    """Nothing after it is computed any more."""
    executor = ScriptedExecutor(lambda slot, position: (END, 0.8) if position == 44 else (WORD, 0.5))
    (sequence,) = run(executor, vocabulary(), [Spec([WORD] * 4, 128, "learn2pd")])
    assert sequence.outcome is Outcome.STOP
    assert sequence.canvas[:41].tolist() == [WORD] * 40 + [END]
    assert (sequence.canvas[41:] == MASK).all()
    first, *later = [row.end for plan in executor.plans for row in plan.rows]
    assert (first, max(later)) == (132, 45)
