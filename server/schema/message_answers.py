"""Answers of `/v1/messages` in Anthropic's shape, whole or as the events of a stream, made of the same parts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import GenericAlias
from typing import Any, Literal

from pydantic_core import from_json

from ..engine.messages import Delta, Finish, Usage
from ..errors import ApiError
from ..http.sse import event
from ..message_errors import OTHERS, TYPES, message_error
from ..text.splitter import CallPart, Piece, Reasoning
from .openapi import REFUSALS, Responses, shape
from .requests import GenerationRequest
from .responses import EventWriter, Finished, Json, usage_json

REASONS: Mapping[Finish, str] = {
    Finish.STOP: "end_turn",
    Finish.LENGTH: "max_tokens",
    Finish.TOOL_CALLS: "tool_use",
}


@dataclass(frozen=True, slots=True)
class MessageReply:
    """Implements `Reply`: one answer, and the fields that it begins with."""

    id: str
    model: str
    request_id: str | None

    def message(self, content: list[Json], stop: Json, usage: Json) -> Json:
        head = {"id": self.id, "type": "message", "role": "assistant", "model": self.model}
        return {**head, "content": content, **stop, "usage": usage}

    def writer(self, body: GenerationRequest, echoes: Sequence[str], prompt_tokens: int) -> EventWriter:
        return MessageWriter(self, prompt_tokens)

    def whole(self, choices: Sequence[Finished], usage: Json) -> Json:
        (answer,) = choices
        return self.message(content_of(answer.parts), _stop(answer.finish, answer.stop), _usage(usage))


class MessageWriter:
    """Implements `EventWriter`. What of the prompt had been computed before is known at the end."""

    def __init__(self, reply: MessageReply, prompt_tokens: int) -> None:
        self._reply = reply
        self._prompt_tokens = prompt_tokens
        self._blocks = 0
        self._last: Piece | None = None

    def begin(self) -> Iterator[bytes]:
        message = self._reply.message([], _stop(None, None), self._usage(Usage()))
        yield _event("message_start", message=message)
        yield _event("ping")

    def write(self, index: int, delta: Delta, parts: Sequence[Piece] | None) -> Iterator[bytes]:
        for part in parts or ():
            if opens(part, self._last):
                yield from self._close()
                self._blocks += 1
                yield _event("content_block_start", index=self._blocks - 1, content_block=opened(part))
            self._last = part
            if added := _added(part):
                yield _event("content_block_delta", index=self._blocks - 1, delta=added)
        if delta.finish is not None:
            yield from self._close()
            usage = self._usage(delta.usage or Usage())
            yield _event("message_delta", delta=_stop(delta.finish, delta.stop), usage=usage)

    def end(self) -> Iterator[bytes]:
        yield _event("message_stop")

    def fail(self, error: ApiError) -> Iterator[bytes]:
        yield event(message_error(error.status, error.message, self._reply.request_id), "error")

    def _usage(self, usage: Usage) -> Json:
        return _usage(usage_json(self._prompt_tokens, {0: usage}, 1))

    def _close(self) -> Iterator[bytes]:
        if self._last is not None:
            yield _event("content_block_stop", index=self._blocks - 1)


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


def opens(part: Piece, last: Piece | None) -> bool:
    """True if a part begins another block than the `last` one is in."""
    return type(part) is not type(last) or (isinstance(part, CallPart) and bool(part.name))


def opened(part: Piece) -> Json:
    """The empty block that a part begins."""
    if isinstance(part, CallPart):
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
    if isinstance(part, Reasoning):
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _added(part: Piece) -> Json | None:
    if isinstance(part, CallPart):
        return {"type": "input_json_delta", "partial_json": part.arguments} if part.arguments else None
    if isinstance(part, Reasoning):
        return {"type": "thinking_delta", "thinking": part.text}
    return {"type": "text_delta", "text": part.text}


def content_of(parts: Sequence[Piece]) -> list[Json]:
    """The blocks of an answer."""
    blocks: list[tuple[Json, list[str]]] = []
    last: Piece | None = None
    for part in parts:
        if opens(part, last):
            blocks.append((opened(part), []))
        last = part
        blocks[-1][1].append(part.arguments if isinstance(part, CallPart) else part.text)
    return [_filled(block, "".join(texts)) for block, texts in blocks]


def _filled(block: Json, text: str) -> Json:
    if block["type"] == "tool_use":
        return {**block, "input": _input(text)}
    return {**block, block["type"]: text}  # a block of text has it in `text`, one of thinking in `thinking`


def _input(arguments: str) -> Any:
    """The values of a call's arguments, which may be broken off at `max_tokens`: then those that are whole, as
    Anthropic's client reads them from a stream."""
    try:
        return from_json(arguments or "{}", allow_partial=True)
    except ValueError:  # it has half a surrogate pair, which no response can have, or nests very deep
        return json.loads(json.dumps(json.loads(arguments), ensure_ascii=False).encode(errors="replace"))


def _stop(finish: Finish | None, stop: str | None) -> Json:
    if finish is Finish.STOP and stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": None if finish is None else REASONS[finish], "stop_sequence": None}


def _usage(usage: Json) -> Json:
    """Anthropic's counts. Its `input_tokens` are those that had not been computed before."""
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"thinking_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
    }


# The shapes in `/openapi.json`.
MessageErrorDetail = shape("MessageErrorDetail", type=Literal[(OTHERS, *TYPES.values())], message=str)
MessageError = shape("MessageError", type=Literal["error"], error=MessageErrorDetail, request_id=str | None)
MESSAGE_REFUSALS: Responses = {status: {**row, "model": MessageError} for status, row in REFUSALS.items()}
MessageUsage = shape(
    "MessageUsage",
    input_tokens=int,
    cache_creation_input_tokens=int,
    cache_read_input_tokens=int,
    output_tokens=int,
    output_tokens_details=shape("OutputTokensDetails", thinking_tokens=int),
)
CONTENT = (
    shape("AnswerText", type=Literal["text"], text=str)
    | shape("AnswerThinking", type=Literal["thinking"], thinking=str, signature=str)
    | shape("AnswerToolUse", type=Literal["tool_use"], id=str, name=str, input=dict[str, Any])
)
MessageAnswer = shape(
    "MessageAnswer",
    id=str,
    type=Literal["message"],
    role=Literal["assistant"],
    model=str,
    content=GenericAlias(list, (CONTENT,)),
    stop_reason=Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"],
    stop_sequence=str | None,
    usage=MessageUsage,
)
MessageTokens = shape("MessageTokens", input_tokens=int)
EVENT = {
    "type": "object",
    "description": "`data` is an event of Anthropic's stream as JSON, whose `type` is `event`; of `error`, its error.",
    "properties": {
        "event": {
            "enum": [
                *("message_start", "ping", "content_block_start", "content_block_delta", "content_block_stop"),
                *("message_delta", "message_stop", "error"),
            ]
        },
        "data": {"type": "string"},
    },
    "required": ["event", "data"],
}
ANSWERED: Responses = {
    200: {
        "model": MessageAnswer,
        "description": "The answer.",
        "content": {"text/event-stream": {"schema": EVENT}},
    }
}
