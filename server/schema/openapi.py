"""The responses in `/openapi.json`: their shapes and every status. A fuzzer checks the server against them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import GenericAlias, MappingProxyType
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict, create_model

Responses = dict[int | str, dict[str, Any]]


def shape(title: str, optional: Mapping[str, Any] = MappingProxyType({}), /, **fields: Any) -> type[BaseModel]:
    """A JSON object with these fields, given by name and type, and perhaps with the `optional` ones."""
    required: dict[str, Any] = {field: (kind, ...) for field, kind in fields.items()}
    others: dict[str, Any] = {field: (kind, None) for field, kind in optional.items()}
    return create_model(title, __config__=ConfigDict(extra="forbid"), **required, **others)


def list_of(kind: type[BaseModel]) -> GenericAlias:
    return GenericAlias(list, (kind,))


FINISH = Literal["stop", "length"]
CHAT_FINISH = Literal["stop", "length", "tool_calls"]

ErrorDetail = shape("ErrorDetail", message=str, type=str, param=str | None, code=str | None)
Error = shape("Error", error=ErrorDetail)

UsageDetails = shape(
    "UsageDetails", reasoning_tokens=int, forwards=int, computed_tokens=int, lanes=int, forks=int, refreshes=int
)
Usage = shape(
    "Usage",
    prompt_tokens=int,
    completion_tokens=int,
    total_tokens=int,
    prompt_tokens_details=shape("PromptDetails", cached_tokens=int),
    completion_tokens_details=UsageDetails,
)
RANKED = {"token": str, "logprob": float, "bytes": list[int]}
ScoredToken = shape("ScoredToken", **RANKED, step=int, top_logprobs=list_of(shape("RankedToken", **RANKED)))
ChatLogprobs = shape("ChatLogprobs", content=list_of(ScoredToken), refusal=None)
CalledFunction = shape("FunctionOfAnswer", name=str, arguments=str)
CallOfAnswer = shape("CallOfAnswer", id=str, type=Literal["function"], function=CalledFunction)
AssistantMessage = shape(
    "AssistantMessage",
    {"reasoning_content": str, "tool_calls": list_of(CallOfAnswer)},
    role=Literal["assistant"],
    content=str | None,
    refusal=None,
)
OptionProbability = shape("OptionProbability", choice=str, probability=float)
OPTIONS = {"choice_probabilities": list_of(OptionProbability)}
PromptToken = shape("PromptToken", logprob=float, rank=int, decoded_token=str)
PROMPT = {"prompt_logprobs": GenericAlias(list, (GenericAlias(dict, (str, PromptToken)) | None,))}
ChatChoice = shape(
    "ChatChoice",
    OPTIONS,
    index=int,
    message=AssistantMessage,
    logprobs=ChatLogprobs | None,
    finish_reason=CHAT_FINISH,
)
ENVELOPE = {"id": str, "created": int, "model": str, "usage": Usage}
ChatCompletion = shape(
    "ChatCompletion", PROMPT, **ENVELOPE, object=Literal["chat.completion"], choices=list_of(ChatChoice)
)
TextLogprobs = shape(
    "TextLogprobs",
    tokens=list[str],
    token_logprobs=list[float | None],
    top_logprobs=list[dict[str, float] | None],
    text_offset=list[int],
    steps=list[int | None],
)
FilledGap = shape("FilledGap", text=str, tokens=int)
TextChoice = shape(
    "TextChoice",
    OPTIONS | PROMPT | {"gaps": list_of(FilledGap)},
    index=int,
    text=str,
    logprobs=TextLogprobs | None,
    finish_reason=FINISH,
)
Completion = shape("Completion", **ENVELOPE, object=Literal["text_completion"], choices=list_of(TextChoice))

ITEM = {"id": str, "status": Literal["completed", "incomplete"]}
OutputText = shape(
    "OutputText", OPTIONS, type=Literal["output_text"], text=str, annotations=list[str], logprobs=list_of(ScoredToken)
)
OutputMessage = shape(
    "OutputMessage", **ITEM, type=Literal["message"], role=Literal["assistant"], content=list_of(OutputText)
)
OutputCall = shape("OutputCall", **ITEM, type=Literal["function_call"], call_id=str, name=str, arguments=str)
ReasoningPart = shape("ReasoningPart", type=Literal["reasoning_text"], text=str)
OutputReasoning = shape(
    "OutputReasoning", **ITEM, type=Literal["reasoning"], summary=list[str], content=list_of(ReasoningPart)
)
ResponseUsage = shape(
    "ResponseUsage",
    input_tokens=int,
    input_tokens_details=shape("InputDetails", cached_tokens=int, cache_write_tokens=int),
    output_tokens=int,
    output_tokens_details=UsageDetails,
    total_tokens=int,
)
ResponseObject = shape(
    "ResponseObject",
    id=str,
    object=Literal["response"],
    created_at=int,
    completed_at=int | None,
    status=Literal["completed", "incomplete"],
    background=bool,
    error=None,
    incomplete_details=shape("IncompleteDetails", reason=Literal["max_output_tokens"]) | None,
    instructions=str | None,
    max_output_tokens=int | None,
    max_tool_calls=None,
    metadata=dict[str, str],
    model=str,
    output=GenericAlias(list, (OutputMessage | OutputCall | OutputReasoning,)),
    parallel_tool_calls=bool,
    previous_response_id=None,
    prompt_cache_key=str | None,
    reasoning=shape("ReasoningOfResponse", effort=str | None, summary=None),
    safety_identifier=str | None,
    service_tier=str,
    store=bool,
    temperature=float,
    text=shape("TextOfResponse", format=dict[str, object], verbosity=str),
    tool_choice=str | dict[str, str],
    tools=list[dict[str, object]],
    top_logprobs=int,
    top_p=float,
    truncation=str,
    usage=ResponseUsage,
    user=str | None,
)

Tokenized = shape("Tokenized", count=int, max_model_len=int, tokens=list[int], token_strs=list[str] | None)
Detokenized = shape("Detokenized", prompt=str)
TokenizerInfo = shape(
    "TokenizerInfo",
    bos_token=str | None,
    eos_token=str | None,
    pad_token=str | None,
    chat_template=str | None,
    vocab_size=int,
    max_model_len=int,
)
Model = shape(
    "Model",
    id=str,
    object=Literal["model"],
    created=int,
    owned_by=str,
    max_model_len=int,
    default_decoder=str,
    decoders=dict[str, dict[str, int | float | bool | str | None]],
)
Models = shape("Models", object=Literal["list"], data=list_of(Model))
Status = shape("Status", status=str)
Version = shape("Version", version=str)


def refusal(description: str) -> dict[str, Any]:
    return {"model": Error, "description": description}


NOT_READY = "Starting, draining, or failed; `status` says which."
FAILED = "The engine has failed; `status` says why. The process is about to end."
UNAUTHORIZED: Responses = {401: refusal("The API key is missing or wrong; only where the server has one.")}
NO_MODEL: Responses = {404: refusal("No such model.")}
REFUSALS: Responses = {
    400: refusal("A parameter, named in `param`, is unknown, not supported, of the wrong type or out of range."),
    **UNAUTHORIZED,
    **NO_MODEL,
    408: refusal("The body was not complete in time."),
    413: refusal("The body is too large."),
    415: refusal("The body is compressed."),
    429: refusal("Too many requests or bodies wait; Retry-After says when to try again."),
    500: refusal("A fault of the server."),
    503: refusal("The server is shutting down, its engine has failed, or too many connections are open."),
}
EXPOSITION: Responses = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
# Fuzzers and generators read each server-sent event as an object.
EVENT = {
    "type": "object",
    "description": "`data` is a chunk in OpenAI's shape as JSON, and `[DONE]` at the end; of `error`, OpenAI's error.",
    "properties": {"event": {"enum": ["message", "error"]}, "data": {"type": "string"}},
    "required": ["data"],
}
RESPONSE_EVENT = {
    "type": "object",
    "description": "`data` is an event of OpenAI's Responses API as JSON; the last is completed, incomplete or failed.",
    "properties": {
        "event": {"type": "string", "pattern": r"^response\.(\w+\.)?\w+$"},
        "data": {"type": "string"},
    },
    "required": ["event", "data"],
}


def answered(model: type[BaseModel], stream: Mapping[str, Any] = EVENT) -> Responses:
    """A whole answer or a stream, depending on `stream` in the body."""
    content = {"text/event-stream": {"schema": stream}}
    return {200: {"model": model, "description": "The answer.", "content": content}}


def document(app: FastAPI, open_paths: Collection[str], has_key: bool, words: Mapping[str, Any]) -> None:
    """Set the application's document: without FastAPI's 422, which is never sent, and with the API key that all paths
    but `open_paths` require. `x-decoder-words` are the `words` that each decoder takes for its parameters."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            app.openapi_schema["x-decoder-words"] = words
            schemas = app.openapi_schema["components"]["schemas"]
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            for path, operations in app.openapi_schema["paths"].items():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
                    if path in open_paths:
                        operation["responses"].pop("401", None)
                    elif has_key:
                        operation["security"] = [{"key": []}, {"key_header": []}]
            if has_key:
                app.openapi_schema["components"]["securitySchemes"] = {
                    "key": {"type": "http", "scheme": "bearer"},
                    "key_header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                }
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign] # as FastAPI's documentation has it
