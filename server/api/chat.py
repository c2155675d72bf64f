"""`POST /v1/chat/completions`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..schema.openapi import ChatCompletion, answered
from ..schema.requests import ChatCompletionRequest
from ..schema.responses import ChatReply, new_envelope
from .generation import PER_TEXT, Backend, Prompt, check_choices, generation_router, respond


def chat_routes(backend: Backend) -> APIRouter:
    router, card, tokenizer = generation_router(), backend.card, backend.tokenizer

    @router.post("/chat/completions", responses=answered(ChatCompletion))
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        card.check_name(body.model)
        check_choices(backend, body, 1)
        messages = [message.for_template() for message in body.messages]
        size = sum(len(message["content"]) + PER_TEXT for message in messages)
        ids = await backend.encode(
            request, "messages", size, lambda: tokenizer.encode_chat(messages, card.max_model_len)
        )
        reply = ChatReply(new_envelope("chatcmpl", card.id, bool(body.streaming.include_usage)))
        return await respond(backend, request, body, [Prompt("messages", ids)], reply)

    return router
