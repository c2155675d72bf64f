"""Answers prompts without a server, through the same engine: for `asynclane generate`, benchmarks and tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, TextIO

from ...scheduler.decoding.resolve import resolve
from ...scheduler.grammar_guide import Constraint
from ..settings import Settings
from ..structured.grammar import Grammars, Wanted
from ..text import counted
from ..text.logprobs import TokenLogprob
from .checkpoint import open_checkpoint
from .messages import AnswerOptions, Delta, Finish, Usage
from .wiring import EngineParts, build_parts


@dataclass(frozen=True, slots=True)
class OfflineAnswer:
    text: str
    token_ids: tuple[int, ...]
    finish: Finish
    usage: Usage
    scores: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked on a command line, and how. `raw` leaves the chat template out; without `max_tokens`, as many as
    fit."""

    prompt: str
    raw: bool = False
    max_tokens: int | None = None
    temperature: float = 0.0
    seed: int = 0
    knobs: Mapping[str, object] = field(default_factory=dict)


class Offline:
    """A model in this process; a context manager. All prompts of a call run together, in the order given."""

    def __init__(self, settings: Settings) -> None:
        self._parts: EngineParts = build_parts(settings)
        self._grammars = Grammars(self._parts.text)
        self._default_max_tokens = settings.default_max_tokens
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.run(self._parts.engine.start())
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.closing(self._runner):
            self._runner.run(self._parts.engine.stop())

    @property
    def max_model_len(self) -> int:
        return self._parts.limits.max_model_len

    @property
    def parts(self) -> EngineParts:
        """What the engine was built of."""
        return self._parts

    def room(self, prompt: Sequence[int]) -> int:
        """How long an answer to `prompt` may be if nobody says; at least 1, which may not fit."""
        return min(self._default_max_tokens, max(1, self.max_model_len - len(prompt)))

    def encode(self, text: str) -> list[int]:
        return self._parts.text.encode(text)

    def encode_chat(self, message: str) -> list[int]:
        """The prompt of a chat that starts with the user's `message`."""
        return self._parts.text.encode_chat([{"role": "user", "content": message}])

    def read(self, question: Question) -> tuple[list[int], AnswerOptions]:
        """The prompt of a question, and how it is to be answered."""
        ids = self.encode(question.prompt) if question.raw else self.encode_chat(question.prompt)
        length = question.max_tokens or self.room(ids)
        return ids, AnswerOptions(length, question.temperature, seed=question.seed, knobs=question.knobs)

    def chat(self, prompts: Sequence[str], options: AnswerOptions) -> list[OfflineAnswer]:
        """An answer to each user message, through the model's chat template."""
        return self.answer([self.encode_chat(prompt) for prompt in prompts], options)

    def answer(self, prompts: Sequence[list[int]], options: AnswerOptions) -> list[OfflineAnswer]:
        """An answer to each row of token ids."""
        return self.answer_each([(prompt, options) for prompt in prompts])

    def answer_each(self, asks: Sequence[tuple[list[int], AnswerOptions]]) -> list[OfflineAnswer]:
        """An answer to each row of token ids, with options of its own."""
        return self._runner.run(self._gather(asks))

    def constraint(self, wanted: Wanted) -> Callable[[], Constraint]:
        """For the options of answers that are to be so. Raises `errors.InvalidValue`."""
        return self._runner.run(self._grammars.constraints(wanted))

    def watch(self, prompt: list[int], options: AnswerOptions, seen: Callable[[Delta], object]) -> OfflineAnswer:
        """The answer to a row of token ids; `seen` is called with each delta as it comes."""
        return self._runner.run(self._one(prompt, options, seen))

    async def _one(self, prompt: list[int], options: AnswerOptions, seen: Callable[[Delta], object]) -> OfflineAnswer:
        async with self._parts.engine.submit(prompt, options) as answer:
            text, finish, usage, scores = "", Finish.STOP, Usage(), list[TokenLogprob]()
            async for delta in answer:
                seen(delta)
                text += delta.text
                scores += delta.scores
                finish, usage = delta.finish or finish, delta.usage or usage
            return OfflineAnswer(text, tuple(answer.token_ids), finish, usage, tuple(scores))

    async def _gather(self, asks: Sequence[tuple[list[int], AnswerOptions]]) -> list[OfflineAnswer]:
        # As many as may run at once: more would only fill the queue, which refuses when it is full.
        places = asyncio.Semaphore(self._parts.limits.slots)

        async def one(prompt: list[int], options: AnswerOptions) -> OfflineAnswer:
            async with places:
                return await self._one(prompt, options, lambda delta: None)

        return list(await asyncio.gather(*(one(*ask) for ask in asks)))


def check(question: Question, settings: Settings) -> None:
    """Refuses what can be refused before the model is loaded, which may take long. Raises `ValueError`."""
    if question.max_tokens is not None:
        config = open_checkpoint(settings.model).config
        resolve(settings.decoder, question.knobs, question.max_tokens, config.pattern)


def generate_main(settings: Settings, question: Question, out: TextIO | None = None) -> int:
    """Answers one prompt and says what it cost; `out` None is standard output. Raises `ApiError`, `ValueError` and
    `OSError` with one line that says what is wrong."""
    check(question, settings)
    with Offline(settings) as offline:
        (answer,) = offline.answer_each([offline.read(question)])
    print(f"{answer.text}\n\n{summary(answer.usage)}", file=out)
    return 0


def summary(usage: Usage) -> str:
    """What an answer took, in one line."""
    tokens, calls = usage.completion_tokens, usage.forwards
    parts = [counted(usage.lanes, "lane"), counted(usage.forks, "fork"), counted(usage.refreshes, "refresh", "es")]
    return (
        f"{counted(tokens, 'token')} in {counted(calls, 'call')}: {tokens / calls:.1f} tokens per call, "
        f"{', '.join(parts)}, {counted(usage.computed_tokens, 'position')} computed"
    )
