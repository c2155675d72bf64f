"""Answers both completion endpoints on one path, streamed or whole, so that their texts cannot differ."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from .. import errors
from ..engine.messages import (
    Answer,
    AnswerOptions,
    AnswerSource,
    Finish,
    Grammar,
    Usage,
)
from ..http.body import JsonRoute
from ..http.sse import (
    DONE,
    ClientGone,
    EventStream,
    event,
    merge,
    until_gone,
)
from ..schema.openapi import REFUSALS, ChatCompletion, Completion, answered
from ..schema.requests import ChatCompletionRequest, CompletionRequest, GenerationRequest
from ..schema.responses import (
    ChatReply,
    Finished,
    Reply,
    TextReply,
    new_envelope,
    usage_chunk,
    usage_json,
)
from ..settings import Settings
from ..structured.grammar import Grammars
from ..text.logprobs import TokenLogprob, mean_logprob
from ..text.tokenizer import TokenizerLike
from .infill_lengths import lengths, likeliest
from .ops import ModelCard

T = TypeVar("T")

LONG_CHARS = 20_000  # or tokens: more are read in a thread, since the event loop has steps to plan
CLIENT_CLOSED_REQUEST = 499


@dataclass(frozen=True, slots=True)
class Backend:
    """What answering needs."""

    engine: AnswerSource
    text: TokenizerLike
    settings: Settings
    card: ModelCard
    grammars: Grammars


@dataclass(frozen=True, slots=True)
class Prompt:
    """Its ids, the parameter to name if they do not fit, the text that its answers begin with, and the ids behind
    them."""

    param: str
    ids: list[int]
    echo: str = ""
    suffix: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        return len(self.ids) + len(self.suffix)


def completion_routes(backend: Backend) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["completions"], responses=REFUSALS, route_class=JsonRoute)
    card, text = backend.card, backend.text

    @router.post("/chat/completions", responses=answered(ChatCompletion))
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        card.check_name(body.model)
        _check_room(backend, body, 1)
        messages = [message.for_template() for message in body.messages]
        size = sum(len(message["content"]) for message in messages)
        ids = await off_loop_if_long(size, lambda: text.encode_chat(messages))
        reply = ChatReply(new_envelope("chatcmpl", card.id, body.include_usage))
        return await _respond(backend, request, body, [Prompt("messages", ids)], reply)

    @router.post("/completions", responses=answered(Completion))
    async def completions(body: CompletionRequest, request: Request) -> Response:
        card.check_name(body.model)
        _check_room(backend, body, len(body.prompt))
        behind = body.suffix or ""
        suffix = tuple(await off_loop_if_long(len(behind), lambda: text.encode(behind, specials=False)))
        prompts = [replace(await _read_prompt(text, prompt, bool(body.echo)), suffix=suffix) for prompt in body.prompt]
        reply = TextReply(new_envelope("cmpl", card.id, body.include_usage))
        return await _respond(backend, request, body, prompts, reply)

    return router


def _check_room(backend: Backend, body: GenerationRequest, prompts: int) -> None:
    """Raises `InvalidValue` for more answers than may ever wait."""
    limit = backend.settings.max_queue
    if prompts * body.choices > limit:
        param = "prompt" if prompts > 1 else "n" if body.choices == body.kept else "best_of"
        each = f"{prompts} prompts with {body.choices} choices each" if prompts > 1 else f"{body.choices} choices"
        raise errors.InvalidValue(param, f"{each} are more than the {limit} answers that may wait here at once")


async def off_loop_if_long(size: int, work: Callable[[], T]) -> T:
    """What `work` makes of so many characters or tokens, in a thread if it would keep the engine waiting."""
    return await asyncio.to_thread(work) if size > LONG_CHARS else work()


async def _read_prompt(text: TokenizerLike, prompt: str | list[int], echo: bool) -> Prompt:
    if isinstance(prompt, str):
        ids = await off_loop_if_long(len(prompt), lambda: text.encode(prompt))
        return Prompt("prompt", ids, prompt if echo else "")
    for token in (min(prompt), max(prompt)):
        check_token(text, "prompt", token)
    told = await off_loop_if_long(len(prompt), lambda: text.decode(prompt)) if echo else ""
    return Prompt("prompt", prompt, told)


def check_token(text: TokenizerLike, param: str, token: int) -> None:
    if not 0 <= token < text.vocab_size:
        raise errors.InvalidValue(param, f"{param}: token ids are from 0 to {text.vocab_size - 1}, not {token}")


def _check_answer_tokens(text: TokenizerLike, body: GenerationRequest) -> None:
    for param, token in body.named_tokens.items():
        check_token(text, param, token)
        if token == text.mask_id:
            raise errors.InvalidValue(param, f"{param}: {token} is the mask, which no answer holds")


def _wishes(
    backend: Backend, body: GenerationRequest, prompt: Prompt, grammar: Grammar | None
) -> list[list[AnswerOptions]]:
    """For each choice of a prompt, one for each length that is tried. Raises `ContextLengthExceeded`, and
    `InvalidValue` for what depends on it."""
    limit, length, asked = backend.card.max_model_len, prompt.tokens, body.answer_limit
    if length + (asked or 1) > limit:
        # A prompt that leaves room for one token is not what is too long.
        param = prompt.param if length + 1 > limit else body.limit_param
        behind = len(prompt.suffix)
        raise errors.ContextLengthExceeded(limit, len(prompt.ids), asked, suffix_tokens=behind, param=param)
    max_tokens = asked or min(limit - length, backend.settings.default_max_tokens)
    if (body.min_tokens or 0) > max_tokens:
        raise errors.InvalidValue("min_tokens", f"min_tokens {body.min_tokens} exceeds the answer's {max_tokens}")
    # Seeds count up within a prompt, so that its answers do not depend on the prompts beside it.
    seed = body.draw_seed()
    tried = lengths(max_tokens, body.min_tokens or 0) if body.tries_lengths else [max_tokens]
    families = [uuid.uuid4().hex if body.choices > 1 else None for _ in tried]
    return [
        [
            body.options(tokens, seed + choice, family, grammar, prompt.suffix)
            for tokens, family in zip(tried, families, strict=True)
        ]
        for choice in range(body.choices)
    ]


async def _respond(
    backend: Backend, request: Request, body: GenerationRequest, prompts: Sequence[Prompt], reply: Reply
) -> Response:
    _check_answer_tokens(backend.text, body)
    grammar = None if body.wanted is None else await backend.grammars.compile(body.wanted)
    asked = [(prompt, tries) for prompt in prompts for tries in _wishes(backend, body, prompt, grammar)]
    wishes = [(prompt, options) for prompt, tries in asked for options in tries]
    limit = backend.settings.max_queue
    if len(wishes) > limit:
        what = f"{len(asked)} choices in several lengths are {len(wishes)} answers, of which {limit} may wait here"
        raise errors.InvalidValue("suffix", f"{what}: give max_tokens, or ask for fewer")
    prompt_tokens = sum(prompt.tokens for prompt in prompts)
    echoes = [prompt.echo for prompt, _ in wishes]
    async with AsyncExitStack() as stack:
        # An answer is entered as soon as it exists: if the next one is refused, it is aborted.
        answers = [
            await stack.enter_async_context(backend.engine.submit(prompt.ids, options)) for prompt, options in wishes
        ]
        if body.stream:
            return EventStream(_events(answers, echoes, reply, body, prompt_tokens), stack.pop_all())
        try:
            tried = iter(await until_gone(request.receive, _collect(answers, echoes)))
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
    groups = [list(islice(tried, len(tries))) for _, tries in asked]
    finished = [likeliest(group) if body.tries_lengths else group[0] for group in groups]
    choices = [
        choice if body.shows_scores else replace(choice, scores=None)
        for start in range(0, len(finished), body.choices)
        for choice in _best(finished[start : start + body.choices], body.kept)
    ]
    usages = {number: choice.usage for number, choice in enumerate(finished)}
    return JSONResponse(reply.whole(choices, usage_json(prompt_tokens, usages, body.choices)))


def _best(choices: list[Finished], kept: int) -> list[Finished]:
    """So many with the highest mean log-probability, the best first; all of them as they are."""
    if kept == len(choices):
        return choices
    return sorted(choices, key=lambda choice: mean_logprob(choice.scores or ()), reverse=True)[:kept]


async def _collect(answers: Sequence[Answer], echoes: Sequence[str]) -> list[Finished]:
    texts: list[list[str]] = [[echo] for echo in echoes]
    scores: list[list[TokenLogprob]] = [[] for _ in answers]
    ends: dict[int, tuple[Finish, Usage]] = {}
    async with aclosing(merge(answers)) as deltas:
        async for index, delta in deltas:
            texts[index].append(delta.text)
            scores[index] += delta.scores
            if delta.finish is not None:
                ends[index] = (delta.finish, delta.usage or Usage())
    _check_complete(answers, ends)
    return [Finished("".join(text), ends[at][0], scores[at], ends[at][1]) for at, text in enumerate(texts)]


async def _events(
    answers: Sequence[Answer], echoes: Sequence[str], reply: Reply, body: GenerationRequest, prompt_tokens: int
) -> AsyncGenerator[bytes, None]:
    """The stream of one response."""
    usages: dict[int, Usage] = {}
    ends: dict[int, Finish] = {}

    def chunk(payload: dict[str, Any]) -> bytes:
        so_far = {"usage": usage_json(prompt_tokens, usages, body.choices)} if body.include_usage_so_far else {}
        return event({**payload, **so_far})

    try:
        for index, echo in enumerate(echoes):
            opening = reply.opening(index)
            if opening is not None:
                yield chunk(opening)
            if echo:
                yield chunk(reply.delta(index, echo))
        async with aclosing(merge(answers)) as deltas:
            async for index, delta in deltas:
                usages[index] = delta.usage or usages.get(index, Usage())
                if delta.lanes is not None:
                    yield chunk(reply.lanes(index, delta.lanes))
                if delta.text or delta.scores:
                    yield chunk(reply.delta(index, delta.text, delta.scores if body.shows_scores else None))
                if delta.finish is not None:
                    ends[index] = delta.finish
                    yield chunk(reply.closing(index, delta.finish))
        _check_complete(answers, ends)
        if body.include_usage:
            yield event(usage_chunk(reply, usage_json(prompt_tokens, usages, body.choices)))
        yield DONE
    except Exception as error:
        # The status has been sent: what is left is to say so in the stream, and to end it without DONE.
        if not isinstance(error, errors.ApiError):
            logging.getLogger(__name__).exception("a stream failed")
        yield event(errors.from_exception(error).body(), "error")


def _check_complete(answers: Sequence[Answer], ends: dict[int, Any]) -> None:
    if len(ends) < len(answers):
        raise errors.EngineFailure("an answer ended without saying why")
