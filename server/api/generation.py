"""The path that all endpoints with answers share, streamed or whole, so that their texts cannot differ."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Scope

from .. import errors
from ..engine.messages import AnswerOptions, AnswerSource, Delta, Finish, GivenTokens, Grammar
from ..http.body import JsonRoute
from ..http.keys import client_of, key_of
from ..http.request_log import RequestRecord
from ..http.sse import EventStream, merge, until_gone
from ..off_loop import OffLoop
from ..schema.completion_request import CompletionRequest
from ..schema.openapi import REFUSALS
from ..schema.requests import GenerationRequest
from ..schema.responses import EventWriter, Finished, ModelCard, Reply, usage_json
from ..settings import Settings
from ..structured.grammar import Grammars
from ..text.answer_formats import AnswerFormats
from ..text.logprobs import TokenLogprob, in_a_row, mean_logprob
from ..text.splitter import Piece
from ..text.tokenizer import TextTooLong, Tokenizer
from .answer_parts import DiffusingReader, Reader, Reading, SplitReading, joined
from .infill_lengths import lengths, likeliest
from .likelihood import ScoredAnswers, Scoring, candidate_tokens, given_tokens, with_prompt

T = TypeVar("T")
Deltas = AsyncGenerator[tuple[int, Delta], None]  # with the numbers of their answers

SHORT_CHARS = 4000  # or tokens, which are encoded or decoded on the event loop
FEW_SCORES = 1000  # log-probabilities that are written on the event loop
PER_TEXT = 32  # characters that take as long as a text itself, however short
ENCODED_AT_ONCE = 2  # of those that are longer
ENTRIES = 64  # of a list that are written at once
DEPTH = 5  # of the lists in a response that are long: those of a choice's log-probabilities


@dataclass(frozen=True, slots=True)
class Backend:
    """The objects that answering a request needs."""

    engine: AnswerSource
    tokenizer: Tokenizer
    settings: Settings
    card: ModelCard
    grammars: Grammars
    encoding: OffLoop
    writing: OffLoop
    formats: AnswerFormats

    async def encode(self, request: Request, param: str, size: int, work: Callable[[], T]) -> T:
        """The result of `work` on so many characters or tokens of a parameter. Raises `ContextLengthExceeded` and
        `ClientGone`."""
        try:
            return await until_gone(request.receive, self.encoding.run(client_of(request.scope), size, work))
        except TextTooLong as error:
            limit, least = self.card.max_model_len, error.least_tokens
            raise errors.ContextLengthExceeded(limit, least, param=param, at_least=True) from None


class AnswerRoute(JsonRoute):
    """A route to the engine. While its queue is full, no body is read."""

    @asynccontextmanager
    async def admitted(self, scope: Scope) -> AsyncIterator[None]:
        """A place in the queue, until the request is submitted or has left. Without it, as many bodies would be read as
        come at once, and most of them refused after that."""
        place = await scope["app"].state.engine.reserve(client_of(scope))
        scope.setdefault("state", {})["place"] = place
        try:
            yield
        finally:
            place.free()


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: the parameter to name if it does not fit, its ids, the text that its answers begin with, the ids of
    the suffix, and the `template` of the canvas, as `AnswerOptions` has it."""

    param: str
    ids: list[int]
    echo: str = ""
    suffix: tuple[int, ...] = ()
    template: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def given(self) -> int:
        """The tokens that are given before the last open position."""
        return len(self.ids) + sum(len(ids) for _, ids in self.template)

    @property
    def tokens(self) -> int:
        return self.given + len(self.suffix)


@dataclass(frozen=True, slots=True)
class PlannedChoice:
    """A choice of a prompt: the options of all lengths that are tried."""

    prompt: Prompt
    tries: list[AnswerOptions]


def generation_router() -> APIRouter:
    return APIRouter(prefix="/v1", tags=["completions"], responses=REFUSALS, route_class=AnswerRoute)


def check_choices(backend: Backend, body: GenerationRequest, prompts: int) -> None:
    """Raises `InvalidValue` for more answers than the queue can hold."""
    limit = backend.settings.max_queue
    if prompts * body.choices > limit:
        param = "prompt" if prompts > 1 else "n" if body.choices == body.kept else "best_of"
        each = f"{prompts} prompts with {body.choices} choices each" if prompts > 1 else f"{body.choices} choices"
        raise errors.InvalidValue(param, f"{param}: {each} are too many: at most {limit} answers may wait at once")


def check_token(tokenizer: Tokenizer, param: str, token: int) -> None:
    if not 0 <= token < tokenizer.vocab_size:
        raise errors.InvalidValue(
            param, f"{param}: token ids are from 0 to {tokenizer.vocab_size - 1}, not {errors.shown(token)}"
        )


def check_named_tokens(tokenizer: Tokenizer, body: GenerationRequest) -> None:
    """Raises `InvalidValue` for a token id in the body that no answer can have."""
    for param, token in body.named_tokens.items():
        check_token(tokenizer, param, token)
        if token == tokenizer.mask_id:
            raise errors.InvalidValue(param, f"{param}: {token} is the mask token, which no answer contains")


async def respond(
    backend: Backend,
    request: Request,
    body: GenerationRequest,
    prompts: Sequence[Prompt],
    reply: Reply,
    reading: Reading | None = None,
) -> Response:
    """Queue all answers of a request, and send them as a stream or as one response; with a `reading`, in parts. Raises
    `ClientGone`."""
    timeout_s = _timeout_s(body, backend.settings.request_timeout_s)
    check_named_tokens(backend.tokenizer, body)
    body.check_candidates()
    if body.diffusing and reading is None:
        reading = SplitReading()
    grammar = await _compiled(backend, request, body, reading)
    chains = await _chains(backend, request, body, grammar)
    planned = _planned(backend, body, prompts, grammar)
    owners = [number // body.choices for number, one in enumerate(planned) for _ in one.tries]
    scored = ScoredAnswers.of(body, [prompt.ids for prompt in prompts], owners, chains)
    _check_limits(backend, body, prompts, planned, scored.scorings)
    bundle = uuid.uuid4().hex if len(owners) + len(scored.scorings) > 1 else None
    candidates = grammar.candidates if body.candidate_texts and grammar is not None else ()
    shown = () if reading is None else reading.shown
    sent = [
        (one.prompt.ids, replace(options, bundle=bundle, timeout_s=timeout_s, shown=shown, candidates=candidates))
        for one in planned
        for options in one.tries
    ]
    readers = None if reading is None else [reading.reader(backend.tokenizer, options) for _, options in sent]
    if readers is not None and body.diffusing:
        readers = [*map(DiffusingReader, readers)]
    sent += [(one.ids, body.scoring_options(one.given, one.ranks, bundle, timeout_s)) for one in scored.scorings]
    echoes, prompt_size = [one.prompt.echo for one in planned for _ in one.tries], sum(one.tokens for one in prompts)
    record: RequestRecord = request.state.record
    record.prompt_tokens, record.options = prompt_size, sent[0][1]
    record.choices, record.streamed, record.submitted_s = len(planned), bool(body.stream), record.age_s
    async with AsyncExitStack() as stack:
        request.state.place.free()  # what is submitted takes it
        # Nothing waits between them: the engine gets all answers of a request at once. If one is refused, all end.
        answers = [
            await stack.enter_async_context(backend.engine.submit(ids, _sent_by(request, options)))
            for ids, options in sent
        ]
        deltas = scored.deltas(merge(answers)) if scored.needed else merge(answers)
        if body.stream:
            writer = reply.writer(body, echoes, prompt_size)
            return EventStream(_events(deltas, len(echoes), writer, record, readers), stack.pop_all())
        collected = await until_gone(request.receive, _collect(deltas, echoes, record, readers))
    finished = _chosen(body, planned, collected)
    written = await _in_thread(
        backend, request, body, finished, lambda: _written(backend.tokenizer, body, prompts, reply, finished)
    )
    return Response(written, media_type="application/json")


def _timeout_s(body: GenerationRequest, longest_s: float) -> float:
    timeout_s = body.timeout or longest_s
    if timeout_s > longest_s:
        raise errors.InvalidValue("timeout", f"timeout: must be at most {longest_s:g} seconds here, not {timeout_s:g}")
    return timeout_s


async def _compiled(
    backend: Backend, request: Request, body: GenerationRequest, reading: Reading | None
) -> Grammar | None:
    """The grammar of the answers. A format that is a part of the grammar of calls is compiled alone first: a refusal
    then names its parameter."""
    grammar = None
    for wanted in (body.wanted, None if reading is None else reading.wanted):
        if wanted is not None:
            compiling = backend.grammars.compile(wanted, client_of(request.scope))
            grammar = await until_gone(request.receive, compiling)
    return grammar


async def _chains(
    backend: Backend, request: Request, body: GenerationRequest, grammar: Grammar | None
) -> GivenTokens | None:
    """The tokens of the candidates, unless there are none, or each is one token."""
    texts = body.candidate_texts
    if not texts or body.wanted is None or grammar is None or grammar.candidates:
        return None
    param, limit = body.wanted.param, backend.card.max_model_len
    size = sum(len(text) + PER_TEXT for text in texts)
    return await backend.encode(request, param, size, lambda: candidate_tokens(backend.tokenizer, texts, limit, param))


def _planned(
    backend: Backend, body: GenerationRequest, prompts: Sequence[Prompt], grammar: Grammar | None
) -> list[PlannedChoice]:
    context, default = backend.card.max_model_len, backend.settings.default_max_tokens
    if isinstance(body, CompletionRequest) and body.scores_prompt:
        return [_scored_choice(body, prompt, context) for prompt in prompts]
    return [
        PlannedChoice(prompt, tries)
        for prompt in prompts
        for tries in planned_choices(body, prompt, context, default, grammar)
    ]


def _check_limits(
    backend: Backend,
    body: GenerationRequest,
    prompts: Sequence[Prompt],
    planned: Sequence[PlannedChoice],
    scorings: Sequence[Scoring],
) -> None:
    """Raises `InvalidValue` for more answers, answer tokens or scored tokens than one request may have."""
    options = [one for choice in planned for one in choice.tries]
    limit, most = backend.settings.max_queue, backend.settings.max_request_tokens
    if len(options) > limit:
        reason = f"{len(planned)} choices in several lengths are {len(options)} answers; at most {limit} may wait here"
        raise errors.InvalidValue("suffix", f"suffix: {reason}: give max_tokens, or fewer prompts and choices")
    param = prompts[0].param
    if len(options) + len(scorings) > limit:
        reason = f"{len(options)} answers and {len(scorings)} that score tokens beside them are too many"
        raise errors.InvalidValue(param, f"{param}: {reason}: at most {limit} may wait at once")
    _check_tokens(backend, body, [one.written(one.max_tokens) for one in options])
    given = [one.given for one in scorings] + [one.scoring for one in options if one.scoring]
    if (total := sum(sum(one.lengths) for one in given)) > most:
        reason = f"{total} tokens to score with {len(prompts)} prompts are too many"
        raise errors.InvalidValue(param, f"{param}: {reason}: at most {most} in one request")


def _chosen(body: GenerationRequest, planned: Sequence[PlannedChoice], collected: list[Finished]) -> list[Finished]:
    """The answer of each choice, among those of all its tries."""
    answers = iter(collected)
    groups = [list(islice(answers, len(choice.tries))) for choice in planned]
    return [likeliest(group) if body.tries_lengths else group[0] for group in groups]


async def _in_thread(
    backend: Backend, request: Request, body: GenerationRequest, finished: list[Finished], write: Callable[[], bytes]
) -> bytes:
    """The result of `write`. Log-probabilities of 100,000 tokens take seconds to write, in which a thread leaves the
    event loop to others."""
    scores = sum(len(one.scores or ()) + len(one.extras.prompt_scores or ()) for one in finished)
    size = scores * (1 + max(body.ranks or 0, body.prompt_logprobs or 0))
    return await until_gone(request.receive, backend.writing.run(client_of(request.scope), size, write))


def _written(
    tokenizer: Tokenizer,
    body: GenerationRequest,
    prompts: Sequence[Prompt],
    reply: Reply,
    finished: list[Finished],
) -> bytes:
    """The response of all choices that were computed, as JSON."""
    if isinstance(body, CompletionRequest) and body.scores_prompt:
        finished = [
            with_prompt(tokenizer, prompt.ids, prompt.echo, body, one)
            for prompt, one in zip(prompts, finished, strict=True)
        ]
    choices = [
        choice if body.shows_scores else replace(choice, scores=None)
        for start in range(0, len(finished), body.choices)
        for choice in _best(finished[start : start + body.choices], body.kept)
    ]
    usages = {number: choice.usage for number, choice in enumerate(finished)}
    prompt_size = sum(prompt.tokens for prompt in prompts)
    found = reply.whole(choices, usage_json(prompt_size, usages, body.choices))
    return b"".join(piece.encode() for piece in _in_pieces(found, DEPTH))


def _in_pieces(value: object, depth: int) -> Iterator[str]:
    """JSON of a value, and of its parts down to a `depth`. Each piece is short: no other thread runs while it is made,
    and a list that is an iterator is never complete in memory."""
    if not depth or not isinstance(value, dict | list | Iterator):
        yield _compact(value)
    elif isinstance(value, dict):
        between = "{"
        for name, field in value.items():
            yield f"{between}{_compact(name)}:"
            yield from _in_pieces(field, depth - 1)
            between = ","
        yield "}" if value else "{}"
    elif isinstance(value, list):
        some = (_compact(value[at : at + ENTRIES])[1:-1] for at in range(0, len(value), ENTRIES))
        yield from ("[", next(some, ""), *(f",{entries}" for entries in some), "]")
    else:
        between = "["
        for entry in value:
            yield between
            yield from _in_pieces(entry, depth - 1)
            between = ","
        yield "]" if between == "," else "[]"


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _scored_choice(body: CompletionRequest, prompt: Prompt, context: int) -> PlannedChoice:
    """A prompt that is scored: the tokens before the first that is, and the options that give the others."""
    start, given = given_tokens(body, prompt.ids, context)
    options = replace(body.options(max(1, len(prompt.ids) - start), body.draw_seed()), scoring=given)
    return PlannedChoice(replace(prompt, ids=prompt.ids[:start], echo=""), [options])


def _check_tokens(backend: Backend, body: GenerationRequest, sizes: Sequence[int]) -> None:
    """Raises `InvalidValue` for more answer tokens than one request may want."""
    limit, total = backend.settings.max_request_tokens, sum(sizes)
    if total > limit:
        param = ("n" if body.choices == body.kept else "best_of") if body.choices > 1 else "prompt"
        if max(sizes) > limit:
            param = body.limit_param
        answers = f"{total} tokens in {len(sizes)} answers"
        raise errors.InvalidValue(
            param, f"{param}: {answers} are too many: {body.limit_param} may add up to {limit} in one request"
        )


def _sent_by(request: Request, options: AnswerOptions) -> AnswerOptions:
    """The options with the client whose turn and share the answer takes. Prompts that begin alike share keys and values
    only under one API key, since `cached_tokens` and time show what others have sent."""
    key = key_of(request.scope)
    options = replace(options, client=client_of(request.scope))
    if key is None:
        return options
    return replace(options, weight=key.weight, cache_salt=f"{key.name}/{options.cache_salt}")


def planned_choices(
    body: GenerationRequest, prompt: Prompt, context: int, default_max_tokens: int, grammar: Grammar | None
) -> list[list[AnswerOptions]]:
    """The options of each choice of a prompt, one for each length that is tried. Raises `ContextLengthExceeded`, and
    `InvalidValue` for values that depend on the answer's length."""
    requested = body.answer_limit
    room = context - prompt.tokens
    if (requested or 1) > room:
        # A prompt that leaves room for one token is not what is too long.
        param = prompt.param if room < 1 else body.limit_param
        suffix_tokens = len(prompt.suffix)
        raise errors.ContextLengthExceeded(context, prompt.given, requested, suffix_tokens=suffix_tokens, param=param)
    max_tokens = requested or min(room, default_max_tokens)
    if (body.min_tokens or 0) > max_tokens:
        raise errors.InvalidValue("min_tokens", f"min_tokens {body.min_tokens} exceeds the answer's {max_tokens}")
    # Seeds count up within a prompt, so that its answers do not depend on other prompts of the request.
    seed = body.draw_seed()
    tried = lengths(max_tokens, body.min_tokens or 0) if body.tries_lengths else [max_tokens]
    groups = [uuid.uuid4().hex if body.choices > 1 else None for _ in tried]
    return [
        [
            body.options(tokens, seed + choice, group, grammar, prompt.suffix, prompt.template)
            for tokens, group in zip(tried, groups, strict=True)
        ]
        for choice in range(body.choices)
    ]


def _best(choices: list[Finished], kept: int) -> list[Finished]:
    """The `kept` choices with the highest mean log-probability, the best first. If all are kept, in their order."""
    if kept == len(choices):
        return choices
    return sorted(choices, key=lambda choice: mean_logprob(choice.scores or ()), reverse=True)[:kept]


async def _collect(
    merged: Deltas,
    echoes: Sequence[str],
    record: RequestRecord,
    readers: Sequence[Reader] | None = None,
) -> list[Finished]:
    parts: list[list[Piece]] = [[] for _ in echoes]
    texts: list[list[str]] = [[echo] for echo in echoes]
    scores: list[list[Sequence[TokenLogprob]]] = [[] for _ in echoes]
    ends: dict[int, Delta] = {}
    async with aclosing(merged) as deltas:
        async for index, delta in deltas:
            if readers is not None:
                found, delta = readers[index].read(delta)
                parts[index] += found or ()
            record.note(index, delta)
            texts[index].append(delta.text)
            if delta.scores:
                scores[index].append(delta.scores)
            if delta.finish is not None:
                ends[index] = delta
    _check_complete(len(echoes), ends)
    finished = [Finished.of("".join(text), in_a_row(scores[at]), ends[at]) for at, text in enumerate(texts)]
    return finished if readers is None else list(map(joined, parts, finished))


async def _events(
    merged: Deltas,
    count: int,
    writer: EventWriter,
    record: RequestRecord,
    readers: Sequence[Reader] | None = None,
) -> AsyncGenerator[bytes, None]:
    """The events of one streamed response, of `count` answers; with `readers`, they are read in parts. An error before
    the first event is raised."""
    begun = False
    ends: dict[int, Finish] = {}
    try:
        async with aclosing(merged) as deltas:
            async for index, delta in deltas:
                if not begun:
                    begun = True
                    for data in writer.begin():
                        yield data
                parts: Sequence[Piece] | None = None
                if readers is not None:
                    parts, delta = readers[index].read(delta)
                record.note(index, delta)
                for data in writer.write(index, delta, parts):
                    yield data
                if delta.finish is not None:
                    ends[index] = delta.finish
        _check_complete(count, ends)
        for data in writer.end():
            yield data
    except Exception as error:
        if not begun:
            raise
        record.failed = True
        record.blame(error)
        # The status has been sent: the error becomes an event, and the stream ends.
        if not isinstance(error, errors.ApiError):
            logging.getLogger(__name__).exception("a stream failed")
        for data in writer.fail(errors.from_exception(error)):
            yield data


def _check_complete(count: int, ends: dict[int, Any]) -> None:
    if len(ends) < count:
        raise errors.EngineFailure("an answer ended without a finish reason")
