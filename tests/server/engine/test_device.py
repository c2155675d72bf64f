"""The device's thread, and the watch over its steps."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from asynclane.scheduler.contract import GREEDY, Row, Selection, StepPlan, StepResult
from asynclane.server.engine.device import Device, DeviceThread, Watchdog

from ...support.fakes import Panic

PLAN = StepPlan((), ())
RESULT = StepResult(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0), device_s=0.1)
POSITIONS = np.arange(32, dtype=np.int32)
ROW = Row(0, 0, 32, 32, (), GREEDY, 0)


def test_calls_run_one_after_another_in_one_thread_which_no_error_ends() -> None:
    thread, threads = DeviceThread(), []

    def call(number: int) -> int:
        threads.append(threading.current_thread())
        if number == 1:
            raise Panic
        return number

    futures = [thread.submit(call, number) for number in range(3)]
    assert isinstance(futures[1].exception(10), Panic)
    assert [futures[at].result(10) for at in (0, 2)] == [0, 2]
    thread.shutdown()
    assert len(set(threads)) == 1
    assert threads[0].daemon
    assert not threads[0].is_alive()


class Step:
    """A step that a device computes by itself, and that is done once `looks` looks have found it under way."""

    def __init__(self, looks: int, threads: list[str]) -> None:
        self._looks, self._threads = looks, threads

    def done(self) -> bool:
        self._looks -= 1
        return self._looks < 0

    def __call__(self) -> StepResult:
        assert self._looks < 0
        self._threads.append(threading.current_thread().name)
        return RESULT


async def test_others_have_the_event_loop_while_the_device_computes_and_no_thread_waits() -> None:
    threads: list[str] = []
    turns = 0
    device = Device(DeviceThread(), lambda plan: Step(50, threads), depth=2)
    watchdog = Watchdog(lambda limit_s: None)

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    waiters = [device.launch(PLAN, watchdog) for _ in range(2)]
    for waiter in waiters:
        assert await device.collect(PLAN, waiter) is RESULT
    task.cancel()
    device.worker.shutdown()
    assert set(threads) == {threading.current_thread().name}
    assert turns >= 100


async def test_the_end_of_a_step_is_not_looked_for_long_before_it() -> None:
    threads: list[str] = []
    device = Device(DeviceThread(), lambda plan: Step(0, threads))
    slept: list[float] = []
    for _ in range(2):
        begun = time.perf_counter()
        await device.collect(PLAN, device.launch(PLAN, Watchdog(lambda limit_s: None)))
        slept.append(time.perf_counter() - begun)
    device.worker.shutdown()
    assert RESULT.device_s / 2 < slept[1] < 10
    assert slept[0] < slept[1]


@pytest.mark.parametrize(
    "quick",
    [ROW._replace(drafter=True), ROW._replace(selection=Selection(1, POSITIONS[1:], POSITIONS[:1]))],
    ids=["of another network", "most positions left out"],
)
async def test_the_end_of_a_quick_step_is_not_awaited_as_long_as_that_of_a_slow_one_of_as_many_positions(
    quick: Row,
) -> None:
    slow_plan, quick_plan = StepPlan((), (ROW,)), StepPlan((), (quick,))
    threads: list[str] = []
    device, watchdog = Device(DeviceThread(), lambda plan: Step(0, threads)), Watchdog(lambda limit_s: None)
    await device.collect(slow_plan, device.launch(slow_plan, watchdog))
    begun = time.perf_counter()
    await device.collect(quick_plan, device.launch(quick_plan, watchdog))
    device.worker.shutdown()
    assert time.perf_counter() - begun < RESULT.device_s / 2


async def test_what_goes_wrong_at_the_start_of_a_step_is_raised_at_its_end() -> None:
    def start(plan: StepPlan) -> Callable[[], StepResult]:
        raise NotImplementedError

    device = Device(DeviceThread(), start)
    waiter = device.launch(PLAN, Watchdog(lambda limit_s: None))
    with pytest.raises(NotImplementedError):
        await device.collect(PLAN, waiter)
    device.worker.shutdown()


def test_a_watchdog_calls_once_for_work_that_takes_too_long_and_never_in_between() -> None:
    late: list[float] = []
    called = threading.Event()
    watchdog = Watchdog(lambda limit_s: (late.append(limit_s), called.set()))
    watchdog.start(tick_s=0.001)
    for _ in range(100):
        watchdog.begin(1000.0)
        watchdog.rest()
    assert not called.wait(0.1)
    watchdog.begin(0.005)
    assert called.wait(30)
    assert late == [0.005]


def test_a_watchdog_that_is_closed_calls_no_more() -> None:
    late: list[float] = []
    watchdog = Watchdog(late.append)
    watchdog.begin(0.001)
    watchdog.close()
    watchdog._run(tick_s=0.001)
    assert not late
