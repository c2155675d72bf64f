"""Answers prompts without a server, through the same engine: for `LLM`, `asynclane generate`, benchmarks and tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from ...scheduler import AS_LISTED, RuleMaker
from ..frontend.client import EngineClient
from ..settings import Settings
from ..structured.grammar import Wanted
from ..text.lanes import LaneEvent
from ..text.logprobs import TokenLogprob
from .messages import Answer, AnswerOptions, Delta, Finish, Grammar, Usage
from .wiring import EngineParts, build_parts

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OfflineAnswer:
    text: str
    token_ids: tuple[int, ...]
    finish: Finish
    usage: Usage
    scores: tuple[TokenLogprob, ...] = ()
    lanes: tuple[LaneEvent, ...] = ()  # if they were requested
    candidate_logprobs: tuple[float, ...] = ()  # if they were requested


class Collected:
    """The deltas of one answer, put together."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._scores: list[TokenLogprob] = []
        self._lanes: list[LaneEvent] = []
        self._finish = Finish.STOP
        self._usage = Usage()
        self._candidate_logprobs: tuple[float, ...] = ()

    def add(self, delta: Delta) -> None:
        self._texts.append(delta.text)
        self._token_ids += delta.token_ids
        self._scores += delta.scores
        if delta.lanes is not None:
            self._lanes.append(delta.lanes)
        self._finish, self._usage = delta.finish or self._finish, delta.usage or self._usage
        self._candidate_logprobs = delta.candidate_logprobs or self._candidate_logprobs

    def answer(self) -> OfflineAnswer:
        return OfflineAnswer(
            "".join(self._texts),
            tuple(self._token_ids),
            self._finish,
            self._usage,
            tuple(self._scores),
            tuple(self._lanes),
            self._candidate_logprobs,
        )


class Offline:
    """A model in this process; a context manager. All prompts of a call run together, in the order given.

    The engine's event loop has a thread of its own, so that callers may have a loop, as notebooks do, and that time
    between two reads of a stream is not lost.
    """

    def __init__(self, settings: Settings, makers: Mapping[str, RuleMaker] = AS_LISTED) -> None:
        """`makers` are those of `build_parts`."""
        self.parts: EngineParts = build_parts(settings, makers)
        self.default_max_tokens = settings.default_max_tokens
        self._client = EngineClient(self.parts.text, self.parts.metrics)
        self._client.join(self.parts.engine)
        # Of all calls, as many as may run at once: more would only fill the queue, which refuses when it is full.
        self._places = asyncio.Semaphore(self.parts.limits.slots)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self.parts.engine.start())
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._run(self.parts.engine.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self.parts.close()

    def room(self, prompt: Sequence[int]) -> int:
        """The default length of an answer to `prompt`; at least 1, which may not fit."""
        return min(self.default_max_tokens, max(1, self.parts.limits.max_model_len - len(prompt)))

    def encode_chat(self, message: str) -> list[int]:
        """The prompt of a chat that starts with the user's `message`."""
        return self.parts.text.encode_chat([{"role": "user", "content": message}])

    def chat(self, prompts: Sequence[str], options: AnswerOptions) -> list[OfflineAnswer]:
        """An answer to each user message, through the model's chat template."""
        return self.answer([self.encode_chat(prompt) for prompt in prompts], options)

    def answer(self, prompts: Sequence[list[int]], options: AnswerOptions) -> list[OfflineAnswer]:
        """An answer to each row of token ids."""
        return self.answer_each([(prompt, options) for prompt in prompts])

    def answer_each(
        self, requests: Sequence[tuple[list[int], AnswerOptions]], done: Callable[[], object] = lambda: None
    ) -> list[OfflineAnswer]:
        """An answer to each row of token ids, with options of its own. `done` is called for each that is complete, in
        the engine's thread. The first `ApiError` ends all of them."""
        return self._run(self._gather(requests, done))

    async def gather(self, requests: Sequence[tuple[list[int], AnswerOptions]]) -> list[OfflineAnswer]:
        """`answer_each` for a caller with an event loop. To cancel it ends all of them."""
        return await asyncio.wrap_future(self._start(self._gather(requests, lambda: None)))

    def watch(self, prompt: list[int], options: AnswerOptions, seen: Callable[[Delta], object]) -> OfflineAnswer:
        """The answer to a row of token ids; `seen` is called with each delta as it comes."""
        collected = Collected()
        for delta in self.stream(prompt, options):
            seen(delta)
            collected.add(delta)
        return collected.answer()

    def stream(self, prompt: list[int], options: AnswerOptions) -> Generator[Delta]:
        """The deltas of the answer to a row of token ids. One that is closed early ends the request."""
        answer = self._run(self._open(prompt, options))
        try:
            while (delta := self._run(self._next(answer))) is not None:
                yield delta
        finally:
            self._run(self._close(answer))

    def grammar(self, wanted: Wanted) -> Grammar:
        """A grammar for the options of answers. Raises `errors.InvalidValue`."""
        return self._run(self.parts.grammars.compile(wanted))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work` in the engine's loop. An interrupt of the caller cancels it. Raises `RuntimeError` once
        the engine has stopped."""
        future = self._start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("this model is closed: make a new one")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _open(self, prompt: list[int], options: AnswerOptions) -> Answer:
        return await self._client.submit(prompt, options).__aenter__()

    async def _next(self, answer: Answer) -> Delta | None:
        return await anext(answer, None)

    async def _close(self, answer: Answer) -> None:
        await answer.__aexit__(None, None, None)

    async def _gather(
        self, requests: Sequence[tuple[list[int], AnswerOptions]], done: Callable[[], object]
    ) -> list[OfflineAnswer]:
        async def one(prompt: list[int], options: AnswerOptions) -> OfflineAnswer:
            collected = Collected()
            async with self._places, self._client.submit(prompt, options) as answer:
                async for delta in answer:
                    collected.add(delta)
            done()
            return collected.answer()

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(*request)) for request in requests]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]
