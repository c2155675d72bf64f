"""How the engine reaches the device: a plan is launched at once, and waited for in the one thread kept for that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from ...scheduler.contract import StepPlan, StepResult

Waiter = Callable[[], StepResult]


@dataclass(frozen=True, slots=True)
class Device:
    """`start` begins a plan and returns what waits for its result, in `worker`, the thread in which the model was made.
    `depth` steps may be in flight.

    `start` is called on the event loop, where a hop to the thread would cost as much again, and never while the thread
    waits. It takes well under a millisecond, but for the first plan of a shape, whose graph it captures.
    """

    worker: ThreadPoolExecutor
    start: Callable[[StepPlan], Waiter]
    depth: int = 1

    def launch(self, plan: StepPlan) -> Waiter:
        """What goes wrong at the start is raised by the waiter, when its turn has come."""
        try:
            return self.start(plan)
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this step alone
            failed: Future[StepResult] = Future()
            failed.set_exception(error)
            return failed.result

    async def collect(self, waiter: Waiter) -> StepResult:
        return await asyncio.get_running_loop().run_in_executor(self.worker, waiter)
