"""The messages between a front end and an engine.

A front end submits requests (`Submit`) and gives them up (`Abort`). The engine answers each request with `Delta`s, of
which the last has a `finish`, or with one `Failure`. Messages are plain data that can cross a process: every field is a
number, a string, bytes, None, a tuple, or a frozen dataclass of such.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, Self

from ...scheduler import RequestStats
from ..text.lanes import LaneEvent
from ..text.logprobs import TokenLogprob

Params = tuple[tuple[str, str | float | bool], ...]  # pairs of name and value


class Finish(StrEnum):
    """Why an answer ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


class Fault(StrEnum):
    """Why an answer failed."""

    PARAMETER = "parameter"  # the value of a parameter
    ENGINE = "engine"
    DRAINING = "draining"
    DOWN = "down"  # the engine has failed for good
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that the front end has compiled: its `text` in llguidance's notation, and the request parameter that
    it comes from."""

    param: str
    text: str


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How one prompt is to be answered. Types are checked before; the engine checks ranges that depend on the model.

    `decoder` None is the server's default; `params` override the decoder's defaults by name. `logit_bias` pairs token
    ids with what is added to their logits, minus infinity for a ban. `suffix` has the token ids after the answer, which
    then fills exactly `max_tokens` positions. `ranks` requests log-probabilities, with so many likeliest tokens each.
    `watch` requests lane events; the text is the same. Requests of one `share_group` differ in their seed alone. Only
    requests of one `cache_salt` share the keys and values of prompts. Clients take turns in proportion to their
    `weight`; the answers of one HTTP request are a `bundle`. `timeout_s` counts from the submission.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_end: bool = False
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    grammar: Grammar | None = None
    suffix: tuple[int, ...] = ()
    ranks: int | None = None
    share_group: str | None = None
    cache_salt: str = ""
    client: str = ""
    weight: float = 1.0
    bundle: str | None = None
    timeout_s: float | None = None
    decoder: str | None = None
    params: Params = ()
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Submit:
    """Answer the token ids of `prompt`."""

    request_id: int
    prompt: tuple[int, ...]
    options: AnswerOptions


@dataclass(frozen=True, slots=True)
class Abort:
    """The client left: free what the request holds. A request that has ended, or is not known, is left alone."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Answer tokens (end token not counted), the request's counters, and the seconds before its first step."""

    completion_tokens: int = 0
    stats: RequestStats = field(default_factory=RequestStats)
    queue_s: float = 0.0

    @classmethod
    def total(cls, usages: Collection[Usage]) -> Usage:
        """The sum over several answers."""
        columns = zip(*(usage.stats for usage in usages), strict=True)
        return cls(sum(usage.completion_tokens for usage in usages), RequestStats(*map(sum, columns)))


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that has become final. The last delta carries `finish`; its text may be empty. `usage` counts from the
    start of the request; `token_ids` are new since the last delta.

    With lane events there is one delta for each step, with or without text. `scores` belong to the tokens whose text is
    complete with this delta.
    """

    text: str
    finish: Finish | None = None
    usage: Usage | None = None
    lanes: LaneEvent | None = None
    scores: tuple[TokenLogprob, ...] = ()
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """The request ended without an answer. `param` names the parameter at fault, if one is."""

    fault: Fault
    message: str
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """The state of an engine: `ready` for new requests, or not yet, or no more. After a `failure`, never again."""

    ready: bool
    failure: str | None = None


class Answer(Protocol):
    """An answer in the making: an async context manager and iterator of deltas. Leaving it early aborts the request;
    a failure is raised from the iterator as an `ApiError`."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> Delta: ...


class AnswerSource(Protocol):
    """An engine, as the HTTP layer uses it."""

    @property
    def health(self) -> Health: ...

    def retry_after_s(self, client: str) -> int | None:
        """Seconds until the queue may take another request of a client; None: it does now."""
        ...

    def submit(self, prompt: list[int], options: AnswerOptions) -> Answer:
        """Queue a request. Raises `errors.InvalidValue`, `errors.ContextLengthExceeded`, `errors.Overloaded`,
        `errors.Draining`, `errors.EngineDown` at once."""
        ...
