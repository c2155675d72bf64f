"""The block length of a step follows from what block lengths were seen to bring and what a step costs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import pytest

from asynclane.bench.steps.simulate import CURVE, read_curve
from asynclane.scheduler.decoding.params import BLOCK_LENGTHS
from asynclane.scheduler.step_cost import (
    ENOUGH,
    EPOCH,
    LEAST_CHUNK,
    LONGEST,
    PAUSE,
    TRIALS,
    BlockYields,
    Budget,
    Halving,
    Pacing,
    StepCost,
)

SHORTEST = BLOCK_LENGTHS[0]
# Commits grow slowly with the block length, positions with all of it: far pays where positions are free.
CALLS = {block_length: (block_length, 4 * math.sqrt(block_length)) for block_length in BLOCK_LENGTHS}


def drive(budget: Budget, requests: int, steps: int, calls: Mapping[int, tuple[float, float]] = CALLS) -> list[int]:
    chosen = []
    for _ in range(steps):
        chosen.append(budget.block_length(requests))
        positions, commits = calls[chosen[-1]]
        budget.observe(requests, round(requests * positions), round(requests * commits))
    return chosen


def most(chosen: Sequence[int]) -> int:
    return max(BLOCK_LENGTHS, key=list(chosen).count)


def test_cost_runs_through_its_points_between_them_and_on_and_stays_above_zero() -> None:
    cost = StepCost([10, 20, 40], [1.0, 2.0, 6.0])
    assert [cost(tokens) for tokens in (5, 10, 15, 20, 30, 40)] == [1.0, 1.0, 1.5, 2.0, 4.0, 6.0]
    assert cost(50) == pytest.approx(8.0)
    assert StepCost([1, 2], [2.0, 1.0])(1000) == 1.0


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


def test_yields_know_nothing_then_converge_and_forget_many_calls_at_once_or_one_after_the_other() -> None:
    yields = BlockYields()
    with pytest.raises(ValueError, match="no forward at block length 64"):
        yields.expected(64)
    yields.observe(64, 1, 100, 10)
    assert yields.expected(64) == (100, 10)
    for _ in range(1000):
        yields.observe(64, 16, 16 * 50, 16 * 20)
    assert yields.expected(64) == pytest.approx((50, 20), rel=1e-2)
    with pytest.raises(ValueError, match="no forward at block length 32"):
        yields.expected(32)
    once, singly = BlockYields(), BlockYields()
    once.observe(32, 64, 64 * 30, 64 * 5)
    for _ in range(64):
        singly.observe(32, 1, 30, 5)
    assert once.expected(32) == pytest.approx(singly.expected(32))


def test_a_cold_budget_reaches_far_and_tries_every_block_length() -> None:
    budget = Budget(read_curve(CURVE))
    assert budget.block_length(256) == LONGEST
    chosen = drive(budget, 256, EPOCH * (len(BLOCK_LENGTHS) + 1))
    assert set(chosen) == set(BLOCK_LENGTHS)


@pytest.mark.parametrize(("requests", "expected"), [(1, LONGEST), (64, SHORTEST), (256, SHORTEST)])
def test_far_for_one_request_and_near_for_many_where_far_brings_little(requests: int, expected: int) -> None:
    budget = Budget(read_curve(CURVE))
    drive(budget, requests, 4 * len(BLOCK_LENGTHS) * int(ENOUGH))
    assert most(drive(budget, requests, 4 * EPOCH * TRIALS)) == expected


def test_far_for_many_where_every_position_brings_as_much() -> None:
    budget = Budget(StepCost([0, 1000], [0.01, 1.0]))
    calls = {block_length: (50 + block_length, block_length / 4) for block_length in BLOCK_LENGTHS}
    drive(budget, 256, EPOCH * 10, calls)
    assert most(drive(budget, 256, 4 * EPOCH * TRIALS, calls)) == LONGEST


def test_what_follows_a_change_teaches_nothing() -> None:
    budget = Budget(StepCost([1, 2], [1.0, 2.0]))
    budget.block_length(8)
    budget.observe(8, 10_000, 1)
    assert all(budget.yields.known(block_length) == 0 for block_length in BLOCK_LENGTHS)


def test_never_outside_of_its_block_lengths_and_the_same_again() -> None:
    loads = [1 + (n * 37) % 256 for n in range(600)]
    runs = []
    for _ in range(2):
        budget = Budget(read_curve(CURVE))
        runs.append([drive(budget, load, 1)[0] for load in loads])
    assert runs[0] == runs[1]
    assert set(runs[0]) <= set(BLOCK_LENGTHS)


def test_choosing_and_learning_take_a_tenth_of_a_millisecond_at_most() -> None:
    budget = Budget(read_curve(CURVE))
    times = []
    for _ in range(500):
        started = time.perf_counter()
        drive(budget, 64, 1)
        times.append(time.perf_counter() - started)
    assert sorted(times)[len(times) // 2] < 1e-4


# Flat, then straight, as a GPU's: 5 ms up to 128 positions, then 25 microseconds each.
GPU = StepCost([1, 128, 1128], [0.005, 0.005, 0.030], pair_s=2e-10)


@pytest.mark.parametrize("work", [1, 8, 64, 256, 1000])
@pytest.mark.parametrize("keys", [0, 16000])
def test_a_prompt_beside_streams_takes_what_their_tokens_can_wait_for(work: int, keys: int) -> None:
    room = Pacing(GPU).room(work, keys, most=2048)
    times = [(GPU(work + chunk) + GPU.pair_s * chunk * keys) / GPU(work) for chunk in (room, room + 1)]
    assert times[0] - 1e-9 < PAUSE < times[1] + 1e-9
    assert Pacing(GPU).room(work, keys, most=200) == min(room, 200)


def test_a_prompt_alone_takes_steps_whose_positions_cost_little_and_none_takes_less_than_a_block() -> None:
    assert Pacing(GPU).alone == Pacing(GPU).room(0, 0, most=2048) == 1024
    assert Pacing(GPU).room(0, 0, most=300) == 300
    steep = StepCost([0, 1000], [1e-6, 1.0])  # as a CPU's
    assert Pacing(steep).room(4, 0, most=2048) == Pacing(steep).alone == LEAST_CHUNK
    assert Pacing(steep, block_size=200).room(4, 0, most=2048) == 200
    assert Pacing(steep).room(1000, 0, most=2048) == 700


def test_two_steps_in_flight_are_counted_as_they_are_halved() -> None:
    halving = Halving(GPU, slack_s=1.0)  # always
    assert Pacing(GPU, halving).room(64, 0, most=2048) > Pacing(GPU).room(64, 0, most=2048)


def test_steps_are_halved_if_that_costs_the_device_less_than_the_host_takes() -> None:
    """The curve's fixed part, 3 ms, is what a second step costs."""
    halving = Halving(StepCost([1, 64, 1000], [0.003, 0.003, 0.0124]), slack_s=0.002)
    assert not halving.pays(1000)
    for _ in range(100):
        halving.observe(host_s=0.002, positions=500)  # of half a step: 4 ms for a whole one
    assert halving.pays(1000)
    for _ in range(300):
        halving.observe(host_s=0.0002, positions=500)
    assert not halving.pays(1000)
    assert not halving.pays(10)


def test_a_straight_curve_is_halved_however_fast_the_host_is() -> None:
    halving = Halving(StepCost([0, 1000], [1e-6, 1.0]))
    halving.observe(host_s=0.0, positions=100)
    assert halving.pays(100)
