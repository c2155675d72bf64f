"""How the engine reaches the device: a step that computes or waits does so in the one thread kept for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from ..scheduler.contract import Executor, StepPlan, StepResult

Waiter = Callable[[], StepResult]


@dataclass(frozen=True, slots=True)
class Device:
    """An executor and the one thread in which it was made and runs. With `start`, which begins a plan and returns what
    waits for its result, two steps may be in flight. It must return at once: it is called on the event loop, since a
    hop would cost as much again, and never while the thread waits for a step."""

    executor: Executor
    worker: ThreadPoolExecutor
    start: Callable[[StepPlan], Waiter] | None = None

    @property
    def depth(self) -> int:
        return 1 if self.start is None else 2

    def launch(self, plan: StepPlan) -> Waiter:
        if self.start is None:
            return partial(self.executor.execute, plan)
        return self.start(plan)

    async def collect(self, waiter: Waiter) -> StepResult:
        return await asyncio.get_running_loop().run_in_executor(self.worker, waiter)
