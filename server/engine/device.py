"""The device as the engine sees it: its thread, how a plan begins, and the watch over steps that hang."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, ParamSpec, TypeVar

from ...scheduler import StepPlan, StepResult
from .. import errors

P = ParamSpec("P")
T = TypeVar("T")

TICK_S = 1.0
SIMILAR = 16  # positions by which steps differ that are expected to take as long
STEADY = 0.97  # of the time of the last such step
OVERSLEPT_S = 0.0015  # at most: the event loop counts in milliseconds

Waiter = Callable[[], StepResult]


class DeviceThread(Executor):
    """Makes calls one after another in one thread, a daemon: a call that hangs does not keep the process alive."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="device", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._calls.put((future, partial(call, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._calls.put(None)
        if wait:
            self._thread.join()

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - whoever waits decides
                    future.set_exception(error)
            del item, future, call  # a thread that waits keeps nothing alive


@dataclass(slots=True)
class Device:
    """The model's executor. `start` begins a plan and returns a function that waits for its result. That runs in
    `worker`, the thread that loaded the model, unless its attribute `done()` says when it need not wait: a GPU computes
    by itself. `depth` steps may be in flight.

    `start` runs on the event loop, since a hop to the thread would cost as much again, and never while the thread
    works.
    """

    worker: Executor
    start: Callable[[StepPlan], Waiter]
    depth: int = 1
    step_timeout_s: float = 60.0
    max_failed_steps: int = 3  # one after another
    # Of the last step by its positions in all layers, and those of them that a drafter computes, in units of SIMILAR.
    _device_s: dict[tuple[int, int], float] = field(default_factory=dict)
    _begun: deque[float] = field(default_factory=deque)  # when each step in flight began
    _ended: float = 0.0  # when the last step ended

    def launch(self, plan: StepPlan, watchdog: Watchdog) -> Waiter:
        """Begin a plan. The waiter raises what goes wrong at the start, so that it ends only this step's requests."""
        watchdog.begin(self.step_timeout_s)
        self._begun.append(time.perf_counter())
        try:
            return self.start(plan)
        except errors.INTERRUPTS:
            raise
        except BaseException as error:  # noqa: BLE001 - see above
            failed: Future[StepResult] = Future()
            failed.set_exception(error)
            return failed.result

    async def collect(self, plan: StepPlan, waiter: Waiter) -> StepResult:
        begun, done = max(self._begun.popleft(), self._ended), getattr(waiter, "done", None)
        if done is None:
            return await asyncio.get_running_loop().run_in_executor(self.worker, waiter)
        drafted = sum([row.end - row.start for row in plan.rows if row.drafter])
        size = plan.passed // SIMILAR, drafted // SIMILAR
        await _until(done, begun + STEADY * self._device_s.get(size, 0.0))
        self._ended = time.perf_counter()
        result = waiter()
        self._device_s[size] = result.device_s
        return result


async def _until(done: Callable[[], bool], expected: float) -> None:
    """Sleep nearly to the time at which the device is expected to be done, then look again and again: a thread that
    waits for it would take 0.1 ms to say so. In between others have the event loop."""
    rest_s = expected - time.perf_counter()
    if rest_s > 2 * OVERSLEPT_S:
        await asyncio.sleep(rest_s - OVERSLEPT_S)
    while not done():  # noqa: ASYNC110 - nobody else knows
        await asyncio.sleep(0)


class Watchdog:
    """Calls `late`, with the limit, when work takes longer than that. It has a thread, which needs no event loop.

    Ticks of this thread measure the time, so that work is not late because the process was stopped for a while.
    """

    def __init__(self, late: Callable[[float], None]) -> None:
        self._late = late
        self._work = 0, math.inf  # its number and limit
        self._closed = Event()

    def start(self, tick_s: float = TICK_S) -> None:
        Thread(target=self._run, args=[tick_s], name="watchdog", daemon=True).start()

    def begin(self, limit_s: float) -> None:
        """Other work begins; that before is done."""
        self._work = self._work[0] + 1, limit_s

    def rest(self) -> None:
        self.begin(math.inf)

    def close(self) -> None:
        self._closed.set()

    def _run(self, tick_s: float) -> None:
        seen, waited_s = self._work, 0.0
        while not self._closed.wait(tick_s):
            if self._work != seen:
                seen, waited_s = self._work, 0.0
            else:
                waited_s += tick_s
            if waited_s > seen[1]:
                self._late(seen[1])
                return
