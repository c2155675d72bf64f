"""`POST /v1/messages` and `/v1/messages/count_tokens`: chats in Anthropic's form."""

from __future__ import annotations

import uuid

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..errors import InvalidValue
from ..http.body import JsonRoute
from ..schema.chat_request import ChatCompletionRequest
from ..schema.message_answers import ANSWERED, MESSAGE_REFUSALS, MessageReply, MessageTokens
from ..schema.messages import MessagesRequest, MessageTokensRequest
from .chat import Turn, prepare
from .generation import AnswerRoute, Backend, respond

SWITCH = "enable_thinking"  # the variable of chat templates that switches reasoning


def message_routes(backend: Backend) -> list[APIRouter]:
    router, counts = (
        APIRouter(prefix="/v1", tags=["messages"], responses=MESSAGE_REFUSALS, route_class=kind)
        for kind in (AnswerRoute, JsonRoute)
    )

    @router.post("/messages", responses=ANSWERED)
    async def messages(body: MessagesRequest, request: Request) -> Response:
        chat, turn = await _read(backend, request, body)
        reply = MessageReply(f"msg_{uuid.uuid4().hex}", backend.card.named(body.model), request.state.request_id)
        return await respond(backend, request, chat, [turn.prompt], reply, turn.reading(backend.tokenizer, chat))

    @counts.post("/messages/count_tokens", response_model=MessageTokens)
    async def count_tokens(body: MessageTokensRequest, request: Request) -> dict[str, int]:
        _, turn = await _read(backend, request, body)
        return {"input_tokens": turn.prompt.tokens}

    return [router, counts]


async def _read(backend: Backend, request: Request, body: MessageTokensRequest) -> tuple[ChatCompletionRequest, Turn]:
    """The chat that a request is, and the answer that is due. Raises what `prepare` does."""
    chat = _switched(backend, body)
    try:
        return chat, await prepare(backend, request, chat, "messages")
    except InvalidValue as error:
        raise body.placed(error) from None


def _switched(backend: Backend, body: MessageTokensRequest) -> ChatCompletionRequest:
    """The chat with its model's reasoning switched on or off. Raises `InvalidValue` where that is impossible."""
    chat, template = body.chat, backend.tokenizer.template
    if body.thinking is None or body.thinking.type == "adaptive":
        return chat
    wanted = body.thinking.type == "enabled"
    if template is not None and SWITCH in template.variables:
        return chat.model_copy(update={"chat_template_kwargs": {SWITCH: wanted}})
    if wanted != (backend.formats.reasoning is not None):
        can = "is not known to reason" if wanted else f"reasons, and its chat template has no {SWITCH}"
        raise InvalidValue("thinking.type", f"thinking.type: not {body.thinking.type}, since the model {can}")
    return chat
