"""Answers both completion endpoints on one path, streamed or whole, so that their texts cannot differ."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from . import errors
from .ops import ModelCard
from .replies import ChatReply, Finished, Reply, TextReply, new_envelope, usage_chunk, usage_json
from .schemas import ChatCompletionRequest, CompletionRequest, GenerationRequest
from .settings import Settings
from .sse import DONE, ClientGone, EventStream, event, merge, until_gone
from .streams import Answer, AnswerOptions, AnswerSource, Finish, Usage
from .text import TextLike

T = TypeVar("T")

LONG_CHARS = 20_000  # a longer text is encoded in a thread: the event loop has steps to plan
CLIENT_CLOSED_REQUEST = 499

# Naming 4XX also keeps FastAPI from documenting its 422, which this server never sends.
REFUSALS: dict[int | str, dict[str, Any]] = {"4XX": {"description": "Refused; OpenAI's error body says why."}}


@dataclass(frozen=True, slots=True)
class Backend:
    """What answering needs."""

    engine: AnswerSource
    text: TextLike
    settings: Settings
    card: ModelCard


@dataclass(frozen=True, slots=True)
class Prompt:
    """Its ids, and the parameter to name if they do not fit."""

    param: str
    ids: list[int]


def completion_routes(backend: Backend) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["completions"], responses=REFUSALS)
    card, text = backend.card, backend.text

    @router.post("/chat/completions")
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        card.check_name(body.model)
        messages = [message.for_template() for message in body.messages]
        size = sum(len(message["content"]) for message in messages)
        ids = await _off_loop_if_long(size, lambda: text.encode_chat(messages))
        reply = ChatReply(new_envelope("chatcmpl", card.id, body.include_usage))
        return await _respond(backend, request, body, [Prompt("messages", ids)], reply)

    @router.post("/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        card.check_name(body.model)
        if len(body.prompt) * body.choices > backend.settings.max_queue:
            raise errors.InvalidValue(
                "prompt",
                f"{len(body.prompt)} prompts with {body.choices} choices each are more than"
                f" {backend.settings.max_queue} answers, which is all that may wait here at once",
            )
        prompts = [await _read_prompt(text, prompt) for prompt in body.prompt]
        reply = TextReply(new_envelope("cmpl", card.id, body.include_usage))
        return await _respond(backend, request, body, prompts, reply)

    return router


async def _off_loop_if_long(size: int, encode: Callable[[], T]) -> T:
    return await asyncio.to_thread(encode) if size > LONG_CHARS else encode()


async def _read_prompt(text: TextLike, prompt: str | list[int]) -> Prompt:
    if isinstance(prompt, str):
        return Prompt("prompt", await _off_loop_if_long(len(prompt), lambda: text.encode(prompt)))
    for token in (min(prompt), max(prompt)):
        if not 0 <= token < text.vocab_size:
            raise errors.InvalidValue("prompt", f"token ids are from 0 to {text.vocab_size - 1}, not {token}")
    return Prompt("prompt", prompt)


def _wishes(backend: Backend, body: GenerationRequest, prompt: Prompt) -> list[AnswerOptions]:
    """One for each choice of a prompt. Raises `ContextLengthExceeded`."""
    limit, length, asked = backend.card.max_model_len, len(prompt.ids), body.answer_limit
    if length + (asked or 1) > limit:
        raise errors.ContextLengthExceeded(limit, length, asked, param=prompt.param)
    max_tokens = asked or min(limit - length, backend.settings.default_max_tokens)
    # Seeds count up within a prompt, so that its answers do not depend on the prompts beside it.
    seed = body.draw_seed()
    return [body.options(max_tokens, seed + choice) for choice in range(body.choices)]


async def _respond(
    backend: Backend, request: Request, body: GenerationRequest, prompts: Sequence[Prompt], reply: Reply
) -> Response:
    limit = backend.settings.max_queue
    if body.choices > limit:
        raise errors.InvalidValue("n", f"{body.choices} choices are more than the {limit} answers that may wait here")
    wishes = [(prompt.ids, options) for prompt in prompts for options in _wishes(backend, body, prompt)]
    prompt_tokens = sum(len(prompt.ids) for prompt in prompts)
    async with AsyncExitStack() as stack:
        # An answer is entered as soon as it exists: if the next one is refused, it is aborted.
        answers = [await stack.enter_async_context(backend.engine.submit(ids, options)) for ids, options in wishes]
        if body.stream:
            usage = prompt_tokens if body.include_usage else None
            return EventStream(_events(answers, reply, usage), stack.pop_all())
        try:
            finished, usages = await until_gone(request.receive, _collect(answers))
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
    return JSONResponse(reply.whole(finished, usage_json(prompt_tokens, usages)))


async def _collect(answers: Sequence[Answer]) -> tuple[list[Finished], list[Usage]]:
    texts: list[list[str]] = [[] for _ in answers]
    ends: dict[int, tuple[Finish, Usage]] = {}
    async with aclosing(merge(answers)) as deltas:
        async for index, delta in deltas:
            texts[index].append(delta.text)
            if delta.finish is not None:
                ends[index] = (delta.finish, delta.usage or Usage())
    _check_complete(answers, ends)
    finished = [Finished("".join(text), ends[index][0]) for index, text in enumerate(texts)]
    return finished, [usage for _, usage in ends.values()]


async def _events(answers: Sequence[Answer], reply: Reply, prompt_tokens: int | None) -> AsyncGenerator[bytes, None]:
    """The stream of one response; `prompt_tokens` None means that nobody asked for usage."""
    ends: dict[int, Usage] = {}
    try:
        for index in range(len(answers)):
            opening = reply.opening(index)
            if opening is not None:
                yield event(opening)
        async with aclosing(merge(answers)) as deltas:
            async for index, delta in deltas:
                if delta.lanes is not None:
                    yield event(reply.lanes(index, delta.lanes))
                if delta.text:
                    yield event(reply.delta(index, delta.text))
                if delta.finish is not None:
                    ends[index] = delta.usage or Usage()
                    yield event(reply.closing(index, delta.finish))
        _check_complete(answers, ends)
        if prompt_tokens is not None:
            yield event(usage_chunk(reply, usage_json(prompt_tokens, list(ends.values()))))
        yield DONE
    except Exception as error:
        # The status has been sent: what is left is to say so in the stream, and to end it without DONE.
        if not isinstance(error, errors.ApiError):
            logging.getLogger(__name__).exception("a stream failed")
        yield event(errors.from_exception(error).body(), "error")


def _check_complete(answers: Sequence[Answer], ends: dict[int, Any]) -> None:
    if len(ends) < len(answers):
        raise errors.EngineFailure("an answer ended without saying why")
