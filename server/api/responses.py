"""`POST /v1/responses`, without a memory: nothing of a response is kept."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..errors import ApiError
from ..schema.openapi import RESPONSE_EVENT, ResponseObject, answered
from ..schema.response_input import ResponsesRequest
from ..schema.response_items import ResponsesReply
from .chat import prepare
from .generation import Backend, generation_router, respond


def response_routes(backend: Backend) -> APIRouter:
    router = generation_router()

    @router.post("/responses", responses=answered(ResponseObject, RESPONSE_EVENT))
    async def responses(body: ResponsesRequest, request: Request) -> Response:
        try:
            chat = body.chat()
            turn = await prepare(backend, request, chat, "input")
            reply = ResponsesReply(body, backend.card.named(body.model), body.name)
            return await respond(backend, request, chat, [turn.prompt], reply, turn.reading(backend.tokenizer, chat))
        except ApiError as error:
            body.name(error)
            raise

    return router
