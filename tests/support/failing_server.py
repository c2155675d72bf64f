"""`asynclane` with a device that fails at the first request.

Usage: python -P tests/support/failing_server.py FAULT serve ...
FAULT: `lost`, the device raises a sticky error; `hangs`, a step never ends; `blocks`, its start never returns, so that
the event loop is stuck; `loop`, the engine's loop ends; `raises`, the second request is computed, steps of the
first raise an error, and those of the third and later ones a panic. A server that is stuck ends after seconds, unless
the variable CHAOS is `all`: then as late as it does for users.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from asynclane.models.exec.runner import Runner
from asynclane.scheduler import DeviceLost, StepPlan, StepResult
from asynclane.server.cli.main import main
from asynclane.server.engine import wiring
from asynclane.server.frontend import process

STUCK_S = 2.0


class FailingRunner:
    def __init__(self, runner: Runner, fault: str) -> None:
        self._runner = runner
        self._fault = fault
        self._requests = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def step_seconds(self, tokens: int) -> float:
        """Measured by other tests; here it would be most of the start."""
        return 0.001 * tokens

    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        self._requests += len(plan.placements)
        if self._fault == "raises":
            fault = RuntimeError if self._requests == 1 else BaseException
            return self._runner.launch(plan) if self._requests == 2 else partial(fail, fault)
        if self._fault == "loop":
            raise asyncio.CancelledError
        if self._fault == "lost":
            raise DeviceLost("CUDA error: an illegal memory access was encountered")
        if self._fault == "blocks":
            hang()
        return hang


def fail(fault: type[BaseException]) -> NoReturn:
    raise fault("the device is on fire")


def hang() -> NoReturn:
    while True:
        time.sleep(60)


if __name__ == "__main__":
    fault, load = sys.argv[1], wiring.load_runner

    def load_failing(*args: Any) -> Any:
        loaded = load(*args)
        return replace(loaded, runner=FailingRunner(loaded.runner, fault))

    wiring.load_runner = load_failing
    if fault == "blocks" and os.environ.get("CHAOS") != "all":
        process.EXIT_S = STUCK_S
    sys.exit(main(sys.argv[2:]))
