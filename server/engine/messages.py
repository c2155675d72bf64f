"""What an answer is asked to be, and the stream in which it arrives: the seam between HTTP and the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, field
from enum import StrEnum
from typing import Protocol, Self

from ...scheduler.grammar_guide import Constraint
from ...scheduler.logit_bias import NEUTRAL, Preferences
from ..text.lanes import LaneEvent
from ..text.logprobs import TokenLogprob


class Finish(StrEnum):
    """Why an answer ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """One answer's wishes, already checked for type; the engine checks ranges that depend on the model.

    `decoder` None is the server's default; `knobs` override the decoder's defaults by name. With `watch`, every step
    tells what it did to the lanes; the text is the same. `ranks` asks for scores, with so many likeliest tokens each.
    Answers of a `family` differ in their seed alone. `constraint` makes one that the text is held to. With token ids of
    a `suffix` the answer fills what lies between prompt and suffix, `max_tokens` positions. Only answers of the same
    `salt` share keys and values of prompts.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    preferences: Preferences = NEUTRAL
    ranks: int | None = None
    share_group: str | None = None
    constraint: Callable[[], Constraint] | None = None
    suffix: tuple[int, ...] = ()
    cache_salt: str = ""
    decoder: str | None = None
    knobs: Mapping[str, object] = field(default_factory=dict)
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Answer tokens (end token not counted) and what they cost: model calls, positions computed, lanes, forks and
    refreshes of this request. `cached_tokens` of its prompt had been computed for others."""

    completion_tokens: int = 0
    forwards: int = 0
    computed_tokens: int = 0
    lanes: int = 0
    forks: int = 0
    refreshes: int = 0
    cached_tokens: int = 0

    @classmethod
    def total(cls, usages: Iterable[Usage]) -> Usage:
        """Of several answers."""
        return cls(*(sum(column) for column in zip(*map(astuple, usages), strict=True)))


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that has become final. The last delta carries `finish`; its text may be empty. `usage` is what the answer
    has taken so far.

    A watched answer has one with `lanes` for each step, with or without text. Where scores were asked for, `scores`
    belong to the tokens whose text is complete with this delta.
    """

    text: str
    finish: Finish | None = None
    usage: Usage | None = None
    lanes: LaneEvent | None = None
    scores: tuple[TokenLogprob, ...] = ()


class Answer(Protocol):
    """An answer in the making: an async context manager and iterator of deltas. Leaving it early aborts the request;
    an error of the engine is raised from the iterator."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> Delta: ...


class AnswerSource(Protocol):
    """What the HTTP layer needs of an engine."""

    @property
    def ready(self) -> bool: ...

    def submit(self, prompt: list[int], options: AnswerOptions) -> Answer:
        """Queue a request. Raises `errors.InvalidValue`, `errors.ContextLengthExceeded`, `errors.Overloaded`,
        `errors.Draining` at once."""
        ...
