"""Answers prompts without a server, through the same engine: for `asynclane generate`, benchmarks and tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from ..frontend.client import EngineClient
from ..settings import Settings
from ..structured.grammar import Wanted
from ..text.logprobs import TokenLogprob
from .messages import AnswerOptions, Delta, Finish, Grammar, Usage
from .wiring import EngineParts, build_parts


@dataclass(frozen=True, slots=True)
class OfflineAnswer:
    text: str
    token_ids: tuple[int, ...]
    finish: Finish
    usage: Usage
    scores: tuple[TokenLogprob, ...] = ()


class Offline:
    """A model in this process; a context manager. All prompts of a call run together, in the order given."""

    def __init__(self, settings: Settings) -> None:
        self.parts: EngineParts = build_parts(settings)
        self._default_max_tokens = settings.default_max_tokens
        self._runner = asyncio.Runner()
        self._client = EngineClient(self.parts.text, self.parts.metrics.answer_read)
        self._client.join(self.parts.engine)

    def __enter__(self) -> Self:
        self._runner.run(self.parts.engine.start())
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.closing(self._runner):
            self._runner.run(self.parts.engine.stop())
            self.parts.close()

    def room(self, prompt: Sequence[int]) -> int:
        """The default length of an answer to `prompt`; at least 1, which may not fit."""
        return min(self._default_max_tokens, max(1, self.parts.limits.max_model_len - len(prompt)))

    def encode_chat(self, message: str) -> list[int]:
        """The prompt of a chat that starts with the user's `message`."""
        return self.parts.text.encode_chat([{"role": "user", "content": message}])

    def chat(self, prompts: Sequence[str], options: AnswerOptions) -> list[OfflineAnswer]:
        """An answer to each user message, through the model's chat template."""
        return self.answer([self.encode_chat(prompt) for prompt in prompts], options)

    def answer(self, prompts: Sequence[list[int]], options: AnswerOptions) -> list[OfflineAnswer]:
        """An answer to each row of token ids."""
        return self.answer_each([(prompt, options) for prompt in prompts])

    def answer_each(self, requests: Sequence[tuple[list[int], AnswerOptions]]) -> list[OfflineAnswer]:
        """An answer to each row of token ids, with options of its own."""
        return self._runner.run(self._gather(requests))

    def watch(self, prompt: list[int], options: AnswerOptions, seen: Callable[[Delta], object]) -> OfflineAnswer:
        """The answer to a row of token ids; `seen` is called with each delta as it comes."""
        return self._runner.run(self._one(prompt, options, seen))

    def grammar(self, wanted: Wanted) -> Grammar:
        """A grammar for the options of answers. Raises `errors.InvalidValue`."""
        return self._runner.run(self.parts.grammars.compile(wanted))

    async def _one(self, prompt: list[int], options: AnswerOptions, seen: Callable[[Delta], object]) -> OfflineAnswer:
        text, finish, usage = "", Finish.STOP, Usage()
        token_ids: list[int] = []
        scores: list[TokenLogprob] = []
        async with self._client.submit(prompt, options) as answer:
            async for delta in answer:
                seen(delta)
                text += delta.text
                token_ids += delta.token_ids
                scores += delta.scores
                finish, usage = delta.finish or finish, delta.usage or usage
        return OfflineAnswer(text, tuple(token_ids), finish, usage, tuple(scores))

    async def _gather(self, requests: Sequence[tuple[list[int], AnswerOptions]]) -> list[OfflineAnswer]:
        # As many as may run at once: more would only fill the queue, which refuses when it is full.
        places = asyncio.Semaphore(self.parts.limits.slots)

        async def one(prompt: list[int], options: AnswerOptions) -> OfflineAnswer:
            async with places:
                return await self._one(prompt, options, lambda delta: None)

        return list(await asyncio.gather(*(one(*request) for request in requests)))
