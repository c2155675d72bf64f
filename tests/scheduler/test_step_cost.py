"""The shape of a request follows from what answers of each shape took, and what a step costs."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence

import pytest

from asynclane.bench.steps.prefill import read_curve
from asynclane.bench.steps.simulate import CURVE
from asynclane.scheduler.decoding.params import DEFAULT_SHAPE, SHAPES, LaneShape
from asynclane.scheduler.step_cost import (
    LEAST_CHUNK,
    PAUSE,
    PROMPT_POSITION_OF_BOTH,
    AnswerCost,
    Budget,
    Halving,
    Pacing,
    ShapeMeans,
    StepCost,
    StepSize,
)


def test_cost_runs_through_its_points_between_them_and_on_and_stays_above_zero() -> None:
    cost = StepCost([10, 20, 40], [1.0, 2.0, 6.0])
    assert [cost(tokens) for tokens in (5, 10, 15, 20, 30, 40)] == [1.0, 1.0, 1.5, 2.0, 4.0, 6.0]
    assert cost(50) == pytest.approx(8.0)
    assert StepCost([1, 2], [2.0, 1.0])(1000) == 1.0


def test_a_step_takes_the_time_of_each_network_that_has_a_part_of_it() -> None:
    cost = StepCost([10, 20], [1.0, 2.0], 0.01, drafter=StepCost([10, 20], [0.25, 0.5], 0.001))
    assert [cost(20), cost(20, 20), cost(40, 20)] == [2.0, 0.5, 2.5]
    assert cost.keys_s(StepSize(30, 10), 5) == pytest.approx(5 * (20 * 0.01 + 10 * 0.001))
    assert cost.longest_s(40) == cost(40, 1) == pytest.approx(3.9 + 0.25)
    assert StepCost([10, 20], [1.0, 2.0])(20, 5) == 2.0  # of a drafter that was not timed


def test_a_step_reaches_another_by_a_position_of_each_network_that_it_lacks() -> None:
    checks, drafts = StepSize(5), StepSize(7, 7)
    assert checks.reaching(drafts) == StepSize(6, 1)
    assert drafts.reaching(checks) == StepSize(8, 7)
    assert StepSize().reaching(checks.plus(drafts)) == StepSize(2, 1)
    assert [each.reaching(each) for each in (checks, drafts)] == [checks, drafts]


@pytest.mark.parametrize(
    ("tokens", "seconds"),
    [
        ([1], [1.0]),
        ([1, 1], [1.0, 2.0]),
        ([1, 2], [1.0]),
        ([1, 2], [0.0, 1.0]),
        ([1, math.inf], [1.0, 2.0]),
        ([1, 2], [1.0, math.nan]),
    ],
)
def test_cost_refuses_bad_points(tokens: list[float], seconds: list[float]) -> None:
    with pytest.raises(ValueError, match="cost curve needs"):
        StepCost(tokens, seconds)


def answer(shape: LaneShape, tokens_a_forward: float, tokens: int = 90) -> AnswerCost:
    """An answer whose forwards compute a whole lane and its look-ahead, and settle what they commit."""
    forwards = max(1, round(tokens / tokens_a_forward))
    return AnswerCost(forwards, 60 + round(forwards * sum(shape)) + tokens, 60, tokens)


# A forward commits more the farther it sees: hardly more where most stays open (prose), as much more as it sees (fast).
PROSE = {shape: answer(shape, 2.5 + 0.02 * sum(shape)) for shape in SHAPES}
FAST = {shape: answer(shape, sum(shape) / 2.5) for shape in SHAPES}


def drive(
    budget: Budget, requests: int, answers: int, costs: Mapping[LaneShape, AnswerCost] = PROSE
) -> list[LaneShape]:
    """The shapes of so many requests, `requests` of them at once."""
    running = deque(budget.begin(requests) for _ in range(requests))
    chosen = []
    for _ in range(answers):
        chosen.append(running.popleft())
        budget.end(chosen[-1], costs[chosen[-1]])
        running.append(budget.begin(requests))
    for shape in running:
        budget.end(shape, None)
    return chosen


def usual(chosen: Sequence[LaneShape]) -> LaneShape:
    return max(SHAPES, key=list(chosen).count)


def test_means_begin_with_what_was_observed_and_forget() -> None:
    means = ShapeMeans()
    assert (means.answers, means.open_share) == (0, 0)
    for cost, count in ((AnswerCost(10, 1000, 100, 50), 1), (AnswerCost(5, 400, 100, 100), 3000)):
        for _ in range(count):
            means.observe(cost)
    assert means.rate(2, StepCost([0, 1000], [1e-9, 1.0])) == pytest.approx(40 / 0.16)
    assert means.open_share == pytest.approx(1 - 300 / 400)


@pytest.mark.parametrize(("requests", "expected"), [(1, DEFAULT_SHAPE), (64, LaneShape(4, 0)), (256, LaneShape(4, 0))])
def test_wide_for_one_request_and_narrow_for_many_where_most_positions_stay_open(
    requests: int, expected: LaneShape
) -> None:
    budget = Budget(read_curve(CURVE))
    drive(budget, requests, 1000)
    assert usual(drive(budget, requests, 300)) == expected


@pytest.mark.parametrize("requests", [1, 64, 256])
def test_narrow_shapes_are_never_tried_where_forwards_commit_much(requests: int) -> None:
    assert set(drive(Budget(read_curve(CURVE)), requests, 1500, FAST)) == {DEFAULT_SHAPE}


def test_a_cold_budget_has_the_default_and_trials_cost_little() -> None:
    budget = Budget(read_curve(CURVE))
    assert budget.begin(64) == DEFAULT_SHAPE
    budget.end(DEFAULT_SHAPE, None)
    drive(budget, 64, 1000)
    chosen = drive(budget, 64, 2000)
    assert set(chosen) == set(SHAPES)  # all are tried again
    best = usual(chosen)
    seconds = sum(budget.cost(64 * PROSE[s].positions / PROSE[s].forwards) * PROSE[s].forwards for s in chosen)
    least = len(chosen) * budget.cost(64 * PROSE[best].positions / PROSE[best].forwards) * PROSE[best].forwards
    assert seconds < 1.02 * least


def test_other_texts_change_the_choice() -> None:
    budget = Budget(read_curve(CURVE))
    assert usual(drive(budget, 64, 300, FAST)) == DEFAULT_SHAPE
    drive(budget, 64, 2000, PROSE)
    assert usual(drive(budget, 64, 300, PROSE)) == LaneShape(4, 0)


def test_requests_that_were_ended_teach_nothing_and_shapes_are_the_same_again() -> None:
    budget = Budget(StepCost([1, 2], [1.0, 2.0]))
    for _ in range(300):
        budget.end(budget.begin(8), None)
    assert all(not means.answers for means in budget.means.values())
    assert budget.begin(8) == DEFAULT_SHAPE
    loads = [1 + (n * 37) % 256 for n in range(30)]
    runs = []
    for _ in range(2):
        budget = Budget(read_curve(CURVE))
        runs.append([shape for load in loads for shape in drive(budget, load, 20)])
    assert runs[0] == runs[1]


def test_choosing_and_learning_take_a_tenth_of_a_millisecond_at_most() -> None:
    budget = Budget(read_curve(CURVE))
    drive(budget, 64, 500)
    times = []
    for _ in range(500):
        started = time.perf_counter()
        shape = budget.begin(64)
        budget.end(shape, PROSE[shape])
        times.append(time.perf_counter() - started)
    assert sorted(times)[len(times) // 2] < 1e-4


# Flat, then straight, as a GPU's: 5 ms up to 128 positions, then 25 microseconds each.
GPU = StepCost([1, 128, 1128], [0.005, 0.005, 0.030], pair_s=2e-10)


@pytest.mark.parametrize("work", [1, 8, 64, 256, 1000])
@pytest.mark.parametrize("keys", [0, 16000])
def test_a_prompt_beside_streams_takes_what_their_tokens_can_wait_for(work: int, keys: int) -> None:
    room = Pacing(GPU).room(StepSize(work), keys, most=2048)
    times = [(GPU(work + chunk) + GPU.pair_s * chunk * keys) / GPU(work) for chunk in (room, room + 1)]
    assert times[0] - 1e-9 < PAUSE < times[1] + 1e-9
    assert Pacing(GPU).room(StepSize(work), keys, most=200) == min(room, 200)


SLOW = StepCost([1, 128, 1128], [0.02, 0.02, 0.12], pair_s=4e-10)
TWO_NETWORKS = StepCost([1, 128, 1128], [0.005, 0.005, 0.030], pair_s=2e-10, drafter=SLOW)


@pytest.mark.parametrize("work", [StepSize(64), StepSize(512), StepSize(512, 512), StepSize(1000, 500)], ids=str)
@pytest.mark.parametrize("keys", [0, 16000])
def test_a_prompt_of_two_networks_takes_what_tokens_can_wait_for_both(work: StepSize, keys: int) -> None:
    each = PROMPT_POSITION_OF_BOTH
    pacing, least = Pacing(TWO_NETWORKS), TWO_NETWORKS(*work)
    room = pacing.room(work, keys, 2048, each)
    times = [
        (TWO_NETWORKS(*work.plus(each, chunk)) + TWO_NETWORKS.keys_s(each, chunk * keys)) / least
        for chunk in (room, room + 1)
    ]
    assert times[0] - 1e-9 < PAUSE or room == LEAST_CHUNK
    assert times[1] + 1e-9 > PAUSE
    assert room <= pacing.room(work, keys, 2048)


def test_a_prompt_alone_takes_steps_whose_positions_cost_little_and_none_takes_less_than_a_block() -> None:
    assert Pacing(GPU).room(StepSize(), 0, most=2048) == 1024
    assert Pacing(GPU).room(StepSize(), 0, most=300) == 300
    steep = StepCost([0, 1000], [1e-6, 1.0])  # as a CPU's
    assert Pacing(steep).room(StepSize(4), 0, most=2048) == Pacing(steep).room(StepSize(), 0, most=2048) == LEAST_CHUNK
    assert Pacing(steep, block_size=200).room(StepSize(4), 0, most=2048) == 200
    assert Pacing(steep).room(StepSize(1000), 0, most=2048) == 700


def test_two_steps_in_flight_are_counted_as_they_are_halved() -> None:
    halving = Halving(GPU, slack_s=1.0)  # always
    assert Pacing(GPU, halving).room(StepSize(64), 0, most=2048) > Pacing(GPU).room(StepSize(64), 0, most=2048)


def test_steps_are_halved_if_that_costs_the_device_less_than_the_host_takes() -> None:
    """The curve's fixed part, 3 ms, is what a second step costs."""
    halving = Halving(StepCost([1, 64, 1000], [0.003, 0.003, 0.0124]), slack_s=0.002)
    assert not halving.pays(StepSize(1000))
    for _ in range(100):
        halving.observe(host_s=0.002, positions=500)  # of half a step: 4 ms for a whole one
    assert halving.pays(StepSize(1000))
    for _ in range(300):
        halving.observe(host_s=0.0002, positions=500)
    assert not halving.pays(StepSize(1000))
    assert not halving.pays(StepSize(10))


def test_a_straight_curve_is_halved_however_fast_the_host_is() -> None:
    halving = Halving(StepCost([0, 1000], [1e-6, 1.0]))
    halving.observe(host_s=0.0, positions=100)
    assert halving.pays(StepSize(100))


def test_a_step_with_drafts_is_halved_by_what_both_networks_take() -> None:
    """A second step costs the fixed parts of both curves."""
    drafter = StepCost([1, 1000], [0.003, 0.003])
    halving = Halving(StepCost([1, 1000], [0.001, 0.001], drafter=drafter), slack_s=0.002)
    assert halving.pays(StepSize(100))
    assert not halving.pays(StepSize(100, 100))
    assert not halving.pays(StepSize(100, 50))
