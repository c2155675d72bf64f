"""The messages between a front end and an engine, and the answers that a front end makes of them.

A front end submits requests (`Submit`) and gives them up (`Abort`). The engine answers each request with `Progress`, of
which the last has a `finish`, or with one `Failed`. A front end reads tokens, and turns them into text (`Delta`).

Messages are plain data that can cross a process: every field is a number, a string, bytes, None, a tuple, or a frozen
dataclass of such. The structs of `FromEngine` and `ToEngine` are what crosses; all else is a part of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, Protocol, Self

import msgspec

from ...scheduler import RequestStats
from ..text.lanes import LaneEvent, LaneStep
from ..text.logprobs import TokenLogprob

Params = tuple[tuple[str, str | int | float | bool], ...]  # pairs of name and value


class Finish(StrEnum):
    """Why an answer ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"  # in the front end, where calls are found in the text


class Fault(StrEnum):
    """Why an answer failed."""

    PARAMETER = "parameter"  # the value of a parameter
    CONTEXT = "context"  # prompt and answer do not fit the context
    OVERLOADED = "overloaded"
    ENGINE = "engine"
    DRAINING = "draining"
    DOWN = "down"  # the engine has failed for good
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that the front end has compiled: its `text` in llguidance's notation, and the request parameter that
    it comes from. `tried_bytes` is the memory that it took in a trial; None: nobody has tried it. `candidates` are the
    tokens of a choice whose texts are one token each, in their order."""

    param: str
    text: str
    tried_bytes: int | None = None
    candidates: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GivenTokens:
    """Token ids to score after a prompt: chains of so many `lengths`, one after another in `tokens`, native int32. With
    `sums` each chain has one score, else each token. If it `proposes`, one token of the network's follows the only
    chain. `samples` of Monte Carlo; 0: each token given those before it. `param` is the request's parameter that wants
    the scores."""

    tokens: bytes
    lengths: tuple[int, ...]
    sums: bool = False
    proposes: bool = False
    samples: int = 0
    param: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How one prompt is to be answered. Types are checked before; the engine checks ranges that depend on the model.

    `decoder` None is the server's default; `params` override the decoder's defaults by name. `logit_bias` pairs token
    ids with what is added to their logits, minus infinity for a ban. With `include_stop` a text ends with the stop
    string that ends it. `suffix` has the token ids after the answer, which then fills exactly `max_tokens` positions. A
    `template` says which of these are given: pairs of a number of open positions and the token ids after them. `ranks`
    requests log-probabilities, with so many likeliest tokens each; errors name `ranks_param`. `watch` requests lane
    events, `diffusing` all that is committed after each step; the text is the same. Requests of one `share_group`
    differ in their seed alone. Only requests of one `cache_salt` share the keys and values of prompts. Clients take
    turns in proportion to their `weight`; the answers of one HTTP request are a `bundle`. `timeout_s` counts from the
    submission. `shown` has special tokens that have text in this answer. With `scoring` there is no answer: the tokens
    given come back with their log-probabilities, and count as no answer's. `candidates` are tokens of which the answer
    is one: its end has their log-probabilities at its first position, without the grammar, if there are `ranks`.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_end: bool = False
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_ids: tuple[int, ...] = ()
    grammar: Grammar | None = None
    suffix: tuple[int, ...] = ()
    template: tuple[tuple[int, tuple[int, ...]], ...] = ()
    ranks: int | None = None
    ranks_param: str = "logprobs"
    share_group: str | None = None
    cache_salt: str = ""
    client: str = ""
    weight: float = 1.0
    bundle: str | None = None
    timeout_s: float | None = None
    decoder: str | None = None
    params: Params = ()
    watch: bool = False
    diffusing: bool = False
    shown: tuple[int, ...] = ()
    scoring: GivenTokens | None = None
    candidates: tuple[int, ...] = ()

    def written(self, tokens: int) -> int:
        """The number of the answer's first `tokens` tokens that were not given."""
        if self.scoring is not None:
            return 0
        start = given = 0
        for open_, ids in self.template:
            start += open_
            given += min(max(0, tokens - start), len(ids))
            start += len(ids)
        return tokens - given


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """A message as it crosses: an array that begins with its class's name."""


class Submit(Message, frozen=True):
    """Answer the token ids of `prompt`. The front end numbers its requests."""

    request_id: int
    prompt: tuple[int, ...]
    options: AnswerOptions


class Abort(Message, frozen=True):
    """The client left, or the front end has `failed` to decode the answer: free what the request holds. A request that
    has ended, or is not known, is left alone."""

    request_id: int
    failed: bool = False


class Reserve(Message, frozen=True):
    """Keep a place in the queue for a request of a client whose body is about to be read. The answer is `Reserved`."""

    place_id: int
    client: str


class Free(Message, frozen=True):
    """A place is no longer needed."""

    place_id: int


class Scrape(Message, frozen=True):
    """Send the metrics of all processes. The answer is `Exposition`."""

    scrape_id: int


class Counts(Message, frozen=True):
    """Events in a front end since its last counts: responses by HTTP status, answers that were read to their end, log
    lines that were dropped, and times between chunks: their number by bucket (`metrics.GAP_SECONDS`) and their sum."""

    responses: tuple[tuple[int, int], ...] = ()
    answers: tuple[AnswerTimes, ...] = ()
    lines_dropped: int = 0
    gaps: tuple[int, ...] = ()
    gaps_s: float = 0.0


class Serving(Message, frozen=True):
    """The front end accepts connections."""


class Progress(Message, frozen=True):
    """The effect of a step on a request: `tokens` that became final, as native int32. `stats` count from the start of
    the request, which waited `queue_s` before its first step. Its first forward ended `first_forward_s` later, since
    all chunks of its prompt come first. The last progress has a `finish`, and native float64 of the request's
    candidates. `canvas` has the tokens of a diffusing request, as native int32 with masks."""

    request_id: int
    tokens: bytes
    stats: RequestStats
    queue_s: float = 0.0
    finish: Finish | None = None
    lanes: LaneStep | None = None
    scores: Scores | None = None
    first_forward_s: float = 0.0
    candidate_logprobs: bytes = b""
    canvas: bytes | None = None


class Failed(Message, frozen=True):
    """A request ended without an answer."""

    request_id: int
    failure: Failure


class Reserved(Message, frozen=True):
    """There is a place in the queue, or none, but perhaps in `retry_after_s` seconds."""

    place_id: int
    retry_after_s: int | None = None


class Exposition(Message, frozen=True):
    """The metrics in Prometheus' text format."""

    scrape_id: int
    text: bytes


class Health(Message, frozen=True):
    """The state of an engine: `ready` for new requests, or not yet, or no more. After a `failure`, never again."""

    ready: bool
    failure: str | None = None


class Reload(Message, frozen=True):
    """Read the API keys again."""


class Stop(Message, frozen=True):
    """Accept no more connections, finish the responses that have begun, and end."""


ToEngine = Submit | Abort | Reserve | Free | Scrape | Counts | Serving
FromEngine = Progress | Failed | Reserved | Exposition | Health | Reload | Stop


class Scores(msgspec.Struct, frozen=True, array_like=True):
    """The columns of `scheduler.Scored`, row by row as native float32 and int32, with `ranks` likeliest tokens each.
    Only tokens that were given have `token_ranks`."""

    logprobs: bytes
    steps: bytes
    ranked: bytes
    ranked_logprobs: bytes
    ranks: int
    token_ranks: bytes = b""


class AnswerTimes(msgspec.Struct, frozen=True, array_like=True):
    """A whole answer as a front end saw it: its tokens, and seconds from its submission to its last token and to its
    first text."""

    completion_tokens: int
    seconds: float
    first_text_s: float | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Answer tokens (end token not counted), the request's counters, the seconds before its first step, and those from
    there to the end of its first forward. `reasoning_tokens` are those of the answer's that are reasoning."""

    completion_tokens: int = 0
    stats: RequestStats = field(default_factory=RequestStats)
    queue_s: float = 0.0
    first_forward_s: float = 0.0
    reasoning_tokens: int = 0

    def with_costs(self, others: Collection[Usage]) -> Usage:
        """The usage of an answer that bears the cost of `others`, which count no tokens."""
        return replace(self, stats=Usage.total((self, *others)).stats)

    @classmethod
    def total(cls, usages: Collection[Usage]) -> Usage:
        """The sum over several answers."""
        columns = zip(*(usage.stats for usage in usages), strict=True)
        return cls(
            sum(usage.completion_tokens for usage in usages),
            RequestStats(*map(sum, columns)),
            reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
        )


class Extras(NamedTuple):
    """Additions of the HTTP layer to the last delta of an answer: the `probabilities` of the texts of which it is one,
    and the scores of its prompt, which other answers of the request have found; the `gaps` of its template, with the
    number of tokens of each."""

    probabilities: tuple[tuple[str, float], ...] = ()
    prompt_scores: Sequence[TokenLogprob] | None = None
    gaps: tuple[tuple[str, int], ...] = ()


NO_EXTRAS = Extras()


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that has become final. The last delta carries `finish`; its text may be empty. `usage` counts from the
    start of the request; `token_ids` are new since the last delta; `stop` is the stop string that has ended the text.

    With lane events there is one delta for each step, with or without text. `scores` belong to the tokens whose text is
    complete with this delta. The last one has the log-probabilities of the answer's candidates, if they were requested.
    `canvas` has all tokens of a diffusing answer that are committed, final or not, with masks between them. The
    HTTP layer adds the `extras` to the last one.
    """

    text: str
    finish: Finish | None = None
    usage: Usage | None = None
    lanes: LaneEvent | None = None
    scores: Sequence[TokenLogprob] = ()
    token_ids: tuple[int, ...] = ()
    stop: str | None = None
    candidate_logprobs: tuple[float, ...] = ()
    canvas: tuple[int, ...] | None = None
    extras: Extras = NO_EXTRAS


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a request has no answer. `param` names the parameter at fault, if one is. `lengths` are those that
    do not fit a context, in tokens: of the context, the prompt, the answer, the suffix and the masks after a prompt."""

    fault: Fault
    message: str
    param: str | None = None
    retry_after_s: int = 1
    lengths: tuple[int, int, int, int, int] | None = None


ENGINE_FAILED = Failure(Fault.ENGINE, "the engine failed while it computed this answer")


class Answer(Protocol):
    """An answer in the making: an async context manager and iterator of deltas. Leaving it early aborts the request;
    a failure is raised from the iterator as an `ApiError`."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> Delta: ...


class Place(Protocol):
    """A place in the queue, for one request."""

    def free(self) -> None:
        """Give it back. Later calls do nothing."""
        ...


class AnswerSource(Protocol):
    """An engine, as the HTTP layer uses it."""

    @property
    def health(self) -> Health: ...

    async def reserve(self, client: str) -> Place:
        """Keep a place in the queue until the request is submitted. Raises `errors.Overloaded`."""
        ...

    def submit(self, prompt: list[int], options: AnswerOptions) -> Answer:
        """Queue a request. A refusal is raised by the answer before its first delta: `errors.InvalidValue`,
        `errors.ContextLengthExceeded`, `errors.Overloaded`, `errors.Draining`, `errors.EngineDown`."""
        ...
