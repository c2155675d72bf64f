"""What `/openapi.json` promises of responses: their shapes and every status, which a fuzzer holds the server to."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict

Responses = dict[int | str, dict[str, Any]]


class Shape(BaseModel):
    """Documented, and complete: no field is left out, and none added."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetail(Shape):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(Shape):
    error: ErrorDetail


class UsageDetails(Shape):
    forwards: int
    computed_tokens: int
    lanes: int
    forks: int
    refreshes: int


class PromptDetails(Shape):
    cached_tokens: int


class Usage(Shape):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: UsageDetails


class RankedToken(Shape):
    token: str
    logprob: float
    bytes: list[int]


class ScoredToken(RankedToken):
    step: int
    top_logprobs: list[RankedToken]


class ChatLogprobs(Shape):
    content: list[ScoredToken]
    refusal: None


class AssistantMessage(Shape):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(Shape):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(Shape):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class TextLogprobs(Shape):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]
    steps: list[int]


class TextChoice(Shape):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"]


class Completion(Shape):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage


class Tokenized(Shape):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Shape):
    prompt: str


class Model(Shape):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    default_decoder: str
    decoders: dict[str, dict[str, int | float | bool | str | None]]


class Models(Shape):
    object: Literal["list"]
    data: list[Model]


class Status(Shape):
    status: str


class Version(Shape):
    version: str


def refusal(description: str) -> dict[str, Any]:
    return {"model": Error, "description": description}


NOT_READY = "Starting or draining."
UNAUTHORIZED: Responses = {401: refusal("No API key, or a wrong one; only where the server has one.")}
NO_MODEL: Responses = {404: refusal("No such model.")}
REFUSALS: Responses = {
    400: refusal("A parameter, named in `param`, that is unknown, not supported, of a wrong type or out of range."),
    **UNAUTHORIZED,
    **NO_MODEL,
    408: refusal("The body did not come in time."),
    413: refusal("The body is too large."),
    429: refusal("The queue is full; Retry-After says when to try again."),
    500: refusal("The server's own fault."),
    503: refusal("The server is shutting down."),
}
EXPOSITION: Responses = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
# As fuzzers and generators read server-sent events: an object each.
EVENT = {
    "type": "object",
    "description": "`data` is a chunk in OpenAI's shape as JSON, and `[DONE]` at the end; of `error`, OpenAI's error.",
    "properties": {"event": {"enum": ["message", "error"]}, "data": {"type": "string"}},
    "required": ["data"],
}


def answered(model: type[Shape]) -> Responses:
    """A whole answer, or a stream, as the body's `stream` asks."""
    content = {"text/event-stream": {"schema": EVENT}}
    return {200: {"model": model, "description": "The answer.", "content": content}}


def document(app: FastAPI, open_paths: Collection[str], has_key: bool) -> None:
    """Sets the application's document: without the 422 that FastAPI adds, for it is never sent, and with the key that
    all but `open_paths` ask for."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            schemas = app.openapi_schema["components"]["schemas"]
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            for path, operations in app.openapi_schema["paths"].items():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
                    if path in open_paths:
                        operation["responses"].pop("401", None)
                    elif has_key:
                        operation["security"] = [{"key": []}]
            if has_key:
                app.openapi_schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign] # as FastAPI's documentation has it
