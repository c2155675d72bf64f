"""The scheduler admits as many requests as it has room for, and shares their work between steps in flight."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from asynclane.scheduler.contract import StepPlan
from asynclane.scheduler.decoding.attention_pattern import AttentionPattern
from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.memory.pages import Limits
from asynclane.scheduler.request import Outcome, Request, State
from asynclane.scheduler.scheduler import QueueFull, Scheduler
from asynclane.scheduler.step_cost import Halving, StepCost

from ..support.fakes import IDS, add, random_executor, vocabulary

ROOM = {"page_size": 8, "step_tokens": 512, "max_model_len": 64}
PAGES = 6  # of one of the requests
QUEUE_LIMITS: dict[str, Callable[[int], Limits]] = {
    "slots": lambda queue: Limits(slots=2, pages=20 * PAGES, max_queue=queue, **ROOM),
    "pages": lambda queue: Limits(slots=20, pages=2 * PAGES + 5, max_queue=queue, **ROOM),
    "both": lambda queue: Limits(slots=2, pages=2 * PAGES, max_queue=queue, **ROOM),
}


def request(number: int) -> Request:
    return Request(number, np.full(16, IDS["w"], np.int32), 32, resolve("llada", {}, 32))


@pytest.mark.parametrize("scarce", QUEUE_LIMITS)
@pytest.mark.parametrize(("queue", "planned"), [(0, False), (3, True)])
def test_those_after_two_that_have_a_place_wait_up_to_the_limit(scarce: str, queue: int, planned: bool) -> None:
    scheduler = Scheduler(QUEUE_LIMITS[scarce](queue), vocabulary())
    taken = []
    for number in range(2 + queue):
        taken.append(add(scheduler, request(number)))
        if planned and number == 1:
            assert scheduler.plan() is not None
    assert queue == 0 or not scheduler.make_room("")
    for number in range(3):
        with pytest.raises(QueueFull, match=f"{queue} of {queue} requests wait"):
            scheduler.add(request(9 + number))
    assert [sequence.state is State.WAITING for sequence in taken] == [False] * 2 + [True] * queue
    scheduler.check_integrity()


def test_a_freed_place_is_taken_before_anybody_is_refused() -> None:
    scheduler = Scheduler(QUEUE_LIMITS["pages"](1), vocabulary())
    first, _, third = (add(scheduler, request(number)) for number in range(3))
    scheduler.end(first.id, Outcome.ABORTED)
    assert scheduler.make_room("")
    fourth = add(scheduler, request(3))
    assert (third.state, fourth.state) == (State.RUNNING, State.WAITING)
    with pytest.raises(QueueFull):
        scheduler.add(request(4))


def test_positions_in_flight_are_the_masks_of_all_requests_that_have_not_ended() -> None:
    scheduler = Scheduler(QUEUE_LIMITS["slots"](2), vocabulary())
    executor = random_executor(3, end_share=0.0)
    counted = []
    running, left, _ = (add(scheduler, request(number)) for number in range(3))
    assert scheduler.positions_in_flight == 3 * 32
    while (plan := scheduler.plan()) is not None:
        if not counted:
            scheduler.end(left.id, Outcome.ABORTED)  # in a step in flight, whose commit frees it
            assert scheduler.positions_in_flight == 2 * 32
        scheduler.commit(executor.execute(plan))
        counted.append(scheduler.positions_in_flight)
    assert running.state is State.FINISHED
    assert counted == sorted(counted, reverse=True)
    assert len(set(counted)) > 3
    assert counted[-1] == 0


LIMITS = Limits(slots=8, pages=400, page_size=8, step_tokens=2000, max_model_len=400, max_queue=8)
LINEAR = Halving(StepCost([0, 1000], [1e-6, 1.0]))
FLAT = Halving(StepCost([0, 1000], [1.0, 1.01]))


def scheduler_with(halving: Halving | None, prompts: list[int]) -> Scheduler:
    scheduler = Scheduler(LIMITS, vocabulary(), halving=halving)
    decoder = resolve("llada", {"block_length": 16}, 64)
    for number, size in enumerate(prompts):
        scheduler.add(Request(number, np.full(size, 6, np.int32), 64, decoder))
    return scheduler


def planned(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.plan()
    assert plan is not None
    return plan


def test_each_of_two_steps_carries_half_of_the_work() -> None:
    scheduler = scheduler_with(LINEAR, [100] * 8)
    first, second = planned(scheduler), planned(scheduler)
    assert first.tokens == second.tokens
    assert {row.slot for row in first.rows}.isdisjoint(row.slot for row in second.rows)
    assert scheduler.plan() is None


def test_the_halves_stay_even_and_nobody_loses_a_turn() -> None:
    prompts = [20, 60, 20, 20, 100, 30, 20]
    scheduler, executor = scheduler_with(LINEAR, prompts), random_executor(3, end_share=0.0)
    half = (sum(prompts) + 64 * len(prompts)) // 2  # without a cache every step computes all of a request
    plans = [planned(scheduler), planned(scheduler)]
    for _ in range(20):
        assert all(plan.tokens <= half + max(row.tokens for row in plan.rows) for plan in plans)
        assert sum(len(plan.rows) for plan in plans) == len(prompts)
        scheduler.commit(executor.execute(plans.pop(0)))
        plans.append(planned(scheduler))


def test_where_a_steps_time_is_flat_one_step_carries_all() -> None:
    scheduler = scheduler_with(FLAT, [100] * 8)
    assert len(planned(scheduler).rows) == 8
    assert scheduler.plan() is None


def test_positions_that_few_layers_compute_do_not_count_as_work() -> None:
    """Eight blocks of 8 take more than twice as long as four, but of each only few positions go on."""
    cost = StepCost([0, 63, 64, 1000], [0.001, 0.001, 0.003, 0.003])
    pattern = AttentionPattern(block_size=8, selects=True)
    sizes = []
    for cache in ("prefix", "focus"):
        scheduler = Scheduler(LIMITS, vocabulary(), halving=Halving(cost, slack_s=0.0), pattern=pattern)
        executor = random_executor(3, end_share=0.0)
        for number in range(8):
            decoder = resolve("fast-dllm", {"cache": cache, "threshold": 1.0}, 8, pattern)
            scheduler.add(Request(number, np.full(16, 6, np.int32), 8, decoder))
        for _ in range(6):
            plan = planned(scheduler)
            scheduler.commit(executor.execute(plan))
        sizes.append(len(plan.rows))
        assert (plan.passed < plan.tokens / 2) == (cache == "focus")
    assert sizes == [4, 8]


def test_a_request_larger_than_half_of_the_work_gets_its_turn() -> None:
    scheduler, executor = scheduler_with(LINEAR, [330, 5, 5]), random_executor(3, end_share=0.0)
    seen = set()
    plans = [planned(scheduler)]
    for _ in range(6):
        seen |= {row.slot for plan in plans for row in plan.rows}
        while len(plans) < 2 and (plan := scheduler.plan()) is not None:
            plans.append(plan)
        scheduler.commit(executor.execute(plans.pop(0)))
    assert len(seen) == 3


def test_without_halving_a_step_in_flight_must_end_first() -> None:
    scheduler = scheduler_with(None, [100] * 2)
    planned(scheduler)
    with pytest.raises(RuntimeError, match="must be committed or failed first"):
        scheduler.plan()
