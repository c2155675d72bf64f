"""An engine that answers from a script, so that the HTTP layer is tested without a model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from asynclane.scheduler import RequestStats
from asynclane.server.engine.messages import AnswerOptions, Delta, Finish, Health, Usage
from asynclane.server.errors import Overloaded

USAGE = Usage(3, RequestStats(forwards=2, computed_tokens=64, lanes=2, forks=1, refreshes=1, cached_tokens=16))
SCRIPT = (Delta("Hel"), Delta("lo"), Delta(" wörld", Finish.STOP, USAGE))

Step = Delta | Exception | None  # None waits for ever


class FakeAnswer:
    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = iter(steps)
        self.left = asyncio.Event()
        self.waits = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.left.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        await asyncio.sleep(0)
        try:
            step = next(self._steps)
        except StopIteration:
            raise StopAsyncIteration from None
        if step is None:
            self.waits.set()
            await asyncio.Event().wait()
        if isinstance(step, Exception):
            raise step
        assert step is not None
        return step


class FakePlace:
    taken = True

    def free(self) -> None:
        self.taken = False


class FakeEngine:
    """`scripts` are used in turn; a script that is an exception is a refusal."""

    def __init__(self, *scripts: Sequence[Step] | Exception) -> None:
        self._scripts = scripts or (SCRIPT,)
        self.health = Health(ready=True)
        self.full: int | None = None  # the seconds that a full queue says
        self.places: list[FakePlace] = []
        self.prompts: list[list[int]] = []
        self.options: list[AnswerOptions] = []
        self.answers: list[FakeAnswer] = []

    async def reserve(self, client: str) -> FakePlace:
        if self.full is not None:
            raise Overloaded("the queue is full", retry_after_s=self.full)
        self.places.append(FakePlace())
        return self.places[-1]

    def submit(self, prompt: list[int], options: AnswerOptions) -> FakeAnswer:
        script = self._scripts[len(self.prompts) % len(self._scripts)]
        self.prompts.append(prompt)
        self.options.append(options)
        answer = FakeAnswer([script] if isinstance(script, Exception) else script)
        self.answers.append(answer)
        return answer
