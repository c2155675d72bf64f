"""`POST /v1/completions`, and `/v1/fim/completions`, the name that editors know for filling in the middle."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..errors import InvalidValue
from ..schema.completion_request import CompletionRequest
from ..schema.openapi import Completion, answered
from ..schema.responses import TextReply, new_envelope
from .answer_parts import Reading
from .generation import PER_TEXT, Backend, Prompt, check_choices, check_token, generation_router, respond
from .template import read_template


def completion_routes(backend: Backend) -> APIRouter:
    router, card = generation_router(), backend.card

    @router.post("/fim/completions", responses=answered(Completion))
    @router.post("/completions", responses=answered(Completion))
    async def completions(body: CompletionRequest, request: Request) -> Response:
        model = card.named(body.model)
        check_choices(backend, body, max(1, len(body.prompt)))
        prompts, reading = await _read(backend, request, body)
        reply = TextReply(new_envelope("cmpl", model, bool(body.streaming.include_usage)))
        return await respond(backend, request, body, prompts, reply, reading)

    return router


async def _read(backend: Backend, request: Request, body: CompletionRequest) -> tuple[list[Prompt], Reading | None]:
    """Encode the prompts of a request, or its template. Raises an `ApiError`."""
    tokenizer, context = backend.tokenizer, backend.card.max_model_len
    if body.template is not None:
        size = sum(len(part) + PER_TEXT for part in body.template if isinstance(part, str))
        prompt, reading = await backend.encode(
            request, "template", size, lambda: read_template(tokenizer, body, context)
        )
        return [prompt], reading
    after = body.suffix or ""
    suffix = tuple(
        await backend.encode(
            request,
            "suffix",
            len(after),
            lambda: tokenizer.encode(after, specials=False, most_tokens=context, plain=True),
        )
    )
    size = sum(len(prompt) + PER_TEXT for prompt in body.prompt)
    prompts = await backend.encode(
        request, "prompt", size, lambda: [_encoded(backend, body, prompt, suffix) for prompt in body.prompt]
    )
    return prompts, None


def _encoded(backend: Backend, body: CompletionRequest, prompt: str | list[int], suffix: tuple[int, ...]) -> Prompt:
    """Raises `TextTooLong` and `InvalidValue`."""
    tokenizer, echo = backend.tokenizer, bool(body.echo)
    if isinstance(prompt, str):
        specials = body.add_special_tokens is not False
        ids = tokenizer.encode(prompt, specials=specials, most_tokens=backend.card.max_model_len)
        return Prompt("prompt", ids, prompt if echo else "", suffix)
    for token in (min(prompt), max(prompt)):
        check_token(tokenizer, "prompt", token)
    if tokenizer.mask_id in prompt:
        raise InvalidValue("prompt", f"prompt: {tokenizer.mask_id} is the mask token, which only a canvas may contain")
    return Prompt("prompt", prompt, tokenizer.decode(prompt) if echo else "", suffix)
