"""`POST /v1/completions`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..errors import InvalidValue
from ..schema.openapi import Completion, answered
from ..schema.requests import CompletionRequest
from ..schema.responses import TextReply, new_envelope
from ..text.tokenizer import Tokenizer
from .generation import Backend, Prompt, check_choices, check_token, generation_router, off_loop_if_long, respond


def completion_routes(backend: Backend) -> APIRouter:
    router, card, tokenizer = generation_router(), backend.card, backend.tokenizer

    @router.post("/completions", responses=answered(Completion))
    async def completions(body: CompletionRequest, request: Request) -> Response:
        card.check_name(body.model)
        check_choices(backend, body, len(body.prompt))
        after = body.suffix or ""
        suffix = tuple(await off_loop_if_long(len(after), lambda: tokenizer.encode(after, specials=False)))
        prompts = [await _read(tokenizer, prompt, bool(body.echo), suffix) for prompt in body.prompt]
        reply = TextReply(new_envelope("cmpl", card.id, bool(body.streaming.include_usage)))
        return await respond(backend, request, body, prompts, reply)

    return router


async def _read(tokenizer: Tokenizer, prompt: str | list[int], echo: bool, suffix: tuple[int, ...]) -> Prompt:
    if isinstance(prompt, str):
        ids = await off_loop_if_long(len(prompt), lambda: tokenizer.encode(prompt))
        return Prompt("prompt", ids, prompt if echo else "", suffix)
    for token in (min(prompt), max(prompt)):
        check_token(tokenizer, "prompt", token)
    if tokenizer.mask_id in prompt:
        raise InvalidValue("prompt", f"prompt: {tokenizer.mask_id} is the mask token, which only a canvas may contain")
    text = await off_loop_if_long(len(prompt), lambda: tokenizer.decode(prompt)) if echo else ""
    return Prompt("prompt", prompt, text, suffix)
