"""Answers of `/v1/responses`: items of output, whole or as the events of a stream, which add up to them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.messages import Delta, Finish, Usage
from ..errors import ApiError
from ..http.sse import event
from ..text.logprobs import TokenLogprob
from ..text.splitter import CallPart, Piece, Reasoning, Text
from .requests import GenerationRequest
from .response_input import ResponsesRequest
from .responses import EventWriter, Finished, probabilities_json, scored_token, usage_json

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ItemKind:
    """How an item streams: the prefix of its id, the name of its events, and the type of its part. Calls have none."""

    type: str
    prefix: str
    event: str
    part: str = ""


MESSAGE = ItemKind("message", "msg", "output_text", "output_text")
REASONING = ItemKind("reasoning", "rs", "reasoning_text", "reasoning_text")
CALL = ItemKind("function_call", "fc", "function_call_arguments")


class OutputItems:
    """The items of one answer, which its pieces fill one after another. Its methods return the events of that."""

    def __init__(self) -> None:
        self.items: list[Json] = []
        self._kind: ItemKind | None = None  # of the item that is being filled
        self._texts: list[str] = []
        self._logprobs: list[Json] = []
        self._waiting: list[TokenLogprob] = []  # scores of text that has not come

    def note(self, scores: Sequence[TokenLogprob]) -> None:
        """Scores of tokens whose text comes next, or is of no message."""
        self._waiting += scores

    def add(self, piece: Piece) -> Iterator[Json]:
        kind = MESSAGE if isinstance(piece, Text) else REASONING if isinstance(piece, Reasoning) else CALL
        if kind is not self._kind or (isinstance(piece, CallPart) and piece.name):
            yield from self.close("completed")
            yield from self._open(kind, piece)
        text = piece.arguments if isinstance(piece, CallPart) else piece.text
        if text:
            self._texts.append(text)
            scored = {"logprobs": self._scores_of(piece)} if isinstance(piece, Text) else {}
            yield {"type": f"response.{kind.event}.delta", **self._place(), "delta": text, **scored}

    def close(self, status: str, options: Json | None = None) -> Iterator[Json]:
        """End the item that is being filled. `options` are further fields of a message's text."""
        kind, self._kind = self._kind, None
        if kind is None:
            return
        item, text = self.items[-1], "".join(self._texts)
        item["status"] = status
        done = f"response.{kind.event}.done"
        if kind is CALL:
            item["arguments"] = text
            yield {"type": done, **self._place(CALL), "name": item["name"], "arguments": text}
        else:
            part = self._part(kind, text, self._logprobs) | ((options or {}) if kind is MESSAGE else {})
            item["content"] = [part]
            scored = {"logprobs": self._logprobs} if kind is MESSAGE else {}
            yield {"type": done, **self._place(kind), "text": text, **scored}
            yield {"type": "response.content_part.done", **self._place(kind), "part": part}
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item}

    def finish(self, finish: Finish, options: Json) -> Iterator[Json]:
        """End the answer. Its last item is incomplete if a limit has cut it, or another end a call. `options` are the
        probabilities of the texts of which it is one."""
        if not self.items:
            yield from self._open(MESSAGE, Text(""))
        cut = finish is Finish.LENGTH or (finish is Finish.STOP and self._kind is CALL)
        yield from self.close("incomplete" if cut else "completed", options)

    def _open(self, kind: ItemKind, piece: Piece) -> Iterator[Json]:
        item: Json = {"id": f"{kind.prefix}_{uuid.uuid4().hex}", "type": kind.type, "status": "in_progress"}
        if isinstance(piece, CallPart):
            item |= {"call_id": piece.id, "name": piece.name, "arguments": ""}
        else:
            own: Json = {"role": "assistant"} if kind is MESSAGE else {"summary": []}
            item |= {**own, "content": []}
        self.items.append(item)
        self._kind, self._texts, self._logprobs = kind, [], []
        yield {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": item}
        if kind is not CALL:
            yield {"type": "response.content_part.added", **self._place(), "part": self._part(kind, "", [])}

    def _place(self, kind: ItemKind | None = None) -> Json:
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return place if (kind or self._kind) is CALL else {**place, "content_index": 0}

    @staticmethod
    def _part(kind: ItemKind, text: str, logprobs: list[Json]) -> Json:
        part: Json = {"type": kind.part, "text": text}
        return {**part, "annotations": [], "logprobs": logprobs} if kind is MESSAGE else part

    def _scores_of(self, piece: Text) -> list[Json]:
        """Take the scores of a text. Those before it are of reasoning and of calls."""
        end = piece.at + len(piece.text)
        found = [scored_token(score) for score in self._waiting if piece.at <= score.offset < end]
        self._waiting = [score for score in self._waiting if score.offset >= end]
        self._logprobs += found
        return found


class ResponsesReply:
    """One answer. `name` gives the parameters in an error the names that they have here."""

    def __init__(self, body: ResponsesRequest, model: str, name: Callable[[ApiError], None]) -> None:
        self._name = name
        self._output = OutputItems()
        self._response = _response(body, model)
        self._prompt_tokens = 0
        self._usage = Usage()
        self._finish: Finish | None = None
        self._events = 0

    def writer(self, body: GenerationRequest, echoes: Sequence[str], prompt_tokens: int) -> EventWriter:
        self._prompt_tokens = prompt_tokens
        return self

    def whole(self, choices: Sequence[Finished], usage: Json) -> Json:
        (answer,) = choices
        self._output.note(answer.scores or ())
        for part in answer.parts:
            for _ in self._output.add(part):
                pass
        for _ in self._output.finish(answer.finish, probabilities_json(answer.extras)):
            pass
        return self._ended(answer.finish, usage)

    def begin(self) -> Iterator[bytes]:
        for kind in ("response.created", "response.in_progress"):
            yield self._event({"type": kind, "response": self._response})

    def write(self, index: int, delta: Delta, parts: Sequence[Piece] | None) -> Iterator[bytes]:
        self._output.note(delta.scores)
        self._usage = delta.usage or self._usage
        for part in parts or ():
            yield from map(self._event, self._output.add(part))
        if delta.finish is not None:
            self._finish = delta.finish
            yield from map(self._event, self._output.finish(delta.finish, probabilities_json(delta.extras)))

    def end(self) -> Iterator[bytes]:
        assert self._finish is not None  # every answer that ends has a reason
        ended = self._ended(self._finish, usage_json(self._prompt_tokens, {0: self._usage}, 1))
        yield self._event({"type": f"response.{ended['status']}", "response": ended})

    def fail(self, error: ApiError) -> Iterator[bytes]:
        self._name(error)
        sent = error.body()["error"]
        code = ERROR_CODES.get(error.status, "server_error")
        failed = {"code": code, "message": sent["message"], "param": sent["param"], "type": sent["type"]}
        yield from map(self._event, self._output.close("incomplete"))
        response = {**self._response, "status": "failed", "error": failed, "output": self._output.items}
        yield self._event({"type": "response.failed", "response": response})

    def _event(self, payload: Json) -> bytes:
        number, self._events = self._events, self._events + 1
        return event({**payload, "sequence_number": number}, payload["type"])

    def _ended(self, finish: Finish, usage: Json) -> Json:
        cut = finish is Finish.LENGTH
        return {
            **self._response,
            "status": "incomplete" if cut else "completed",
            "completed_at": None if cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self._output.items,
            "usage": _usage(usage),
        }


ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}  # by HTTP status


def _response(body: ResponsesRequest, model: str) -> Json:
    """The answer before its first item: the parameters as they are honoured."""
    text, reasoning, choice = body.text, body.reasoning, body.tool_choice
    formats = text.format.answered() if text is not None and text.format is not None else {"type": "text"}
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None if reasoning is None else reasoning.effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": False,
        "temperature": body.temperature or 0.0,
        "text": {"format": formats, "verbosity": (text and text.verbosity) or body.verbosity or "medium"},
        "tool_choice": (choice or "auto") if choice is None or isinstance(choice, str) else choice.model_dump(),
        "tools": [tool.answered() for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
    }


def _usage(usage: Json) -> Json:
    """No client can have a cache written."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }
