"""The device's thread, and the watch over its steps."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from asynclane.scheduler.contract import StepPlan, StepResult
from asynclane.server.engine.device import COMPILING, Device, DeviceThread, Watchdog

from ...support.fakes import Panic

PLAN = StepPlan((), ())


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


@pytest.mark.parametrize("captured", [True, False])
async def test_a_plan_that_must_be_captured_may_take_longer(captured: bool) -> None:
    limits: list[float] = []

    class Watched(Watchdog):
        def begin(self, limit_s: float) -> None:
            limits.append(limit_s)

    def start(plan: StepPlan) -> Callable[[], StepResult]:
        raise NotImplementedError

    device = Device(DeviceThread(), start, captured=lambda plan: captured, step_timeout_s=2.0)
    waiter = await device.launch(PLAN, Watched(limits.append))
    with pytest.raises(NotImplementedError):
        await device.collect(waiter)
    device.worker.shutdown()
    assert limits == [2.0 if captured else 2.0 * COMPILING]


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
