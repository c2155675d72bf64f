"""`POST /v1/completions`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..errors import InvalidValue
from ..schema.openapi import Completion, answered
from ..schema.requests import CompletionRequest
from ..schema.responses import TextReply, new_envelope
from .generation import PER_TEXT, Backend, Prompt, check_choices, check_token, generation_router, respond


def completion_routes(backend: Backend) -> APIRouter:
    router, card, tokenizer = generation_router(), backend.card, backend.tokenizer

    @router.post("/completions", responses=answered(Completion))
    async def completions(body: CompletionRequest, request: Request) -> Response:
        model = card.named(body.model)
        check_choices(backend, body, len(body.prompt))
        after, context, specials = body.suffix or "", card.max_model_len, body.add_special_tokens is not False
        size = sum(len(prompt) + PER_TEXT for prompt in body.prompt)
        suffix = tuple(
            await backend.encode(
                request, "suffix", len(after), lambda: tokenizer.encode(after, specials=False, most_tokens=context)
            )
        )
        prompts = await backend.encode(
            request,
            "prompt",
            size,
            lambda: [_read(backend, prompt, bool(body.echo), suffix, specials) for prompt in body.prompt],
        )
        reply = TextReply(new_envelope("cmpl", model, bool(body.streaming.include_usage)))
        return await respond(backend, request, body, prompts, reply)

    return router


def _read(backend: Backend, prompt: str | list[int], echo: bool, suffix: tuple[int, ...], specials: bool) -> Prompt:
    """Raises `TextTooLong` and `InvalidValue`."""
    tokenizer = backend.tokenizer
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt, specials=specials, most_tokens=backend.card.max_model_len)
        return Prompt("prompt", ids, prompt if echo else "", suffix)
    for token in (min(prompt), max(prompt)):
        check_token(tokenizer, "prompt", token)
    if tokenizer.mask_id in prompt:
        raise InvalidValue("prompt", f"prompt: {tokenizer.mask_id} is the mask token, which only a canvas may contain")
    return Prompt("prompt", prompt, tokenizer.decode(prompt) if echo else "", suffix)
