"""The middleware around all others: request ids, and one log line for each request. No text of a prompt, an answer or a
key enters it."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import errors
from ..engine.messages import AnswerOptions, Delta, Usage
from ..logs import REQUEST_ID, TRACE
from .keys import key_of

REQUEST_ID_CHARS = 128
PATH_CHARS = 256
CLIENT_CLOSED_REQUEST = 499
PROBES = frozenset({"/health", "/ready", "/metrics"})  # often, and without news


@dataclass(slots=True)
class RequestRecord:
    """One request so far. Of several choices it has the sum of tokens, the longest wait and the first text. Seconds
    count from its headers."""

    status: int = 0
    complete: bool = False  # the whole response was sent
    failed: bool = False  # in the middle of a stream, whose status was 200
    error: tuple[str, str] | None = None  # its type and message
    prompt_tokens: int | None = None
    options: AnswerOptions | None = None  # of its first answer
    choices: int = 1
    streamed: bool = False
    submitted_s: float | None = None
    first_text_s: float | None = None
    finished_s: float | None = None
    usages: dict[int, Usage] = field(default_factory=dict)  # by choice
    finishes: dict[int, str] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)

    @property
    def age_s(self) -> float:
        return time.perf_counter() - self.began

    def blame(self, error: Exception) -> None:
        """Note why the request has failed, or is refused. Details of an unexpected error stay in the log."""
        shown = errors.from_exception(error)
        kind = type(error).__qualname__ if shown is not error or shown.code is None else shown.code
        self.error = kind, shown.message

    def note(self, choice: int, delta: Delta) -> None:
        if delta.text and self.first_text_s is None:
            self.first_text_s = self.age_s
        if delta.usage is not None:
            self.usages[choice] = delta.usage
        if delta.finish is not None:
            self.finishes[choice] = delta.finish.value
            self.finished_s = self.age_s

    @property
    def outcome(self) -> str:
        if self.status == CLIENT_CLOSED_REQUEST or not self.complete:
            return "aborted"
        if self.failed or self.status >= 500:
            return "failed"
        return "refused" if self.status >= 400 else "+".join(sorted(set(self.finishes.values()))) or "ok"

    def numbers(self) -> dict[str, Any]:
        usages = self.usages.values()
        seconds = {
            "queue_s": max((usage.queue_s for usage in usages), default=None),
            "first_text_s": self.first_text_s,
            "total_s": self.age_s,
        }
        tokens = {
            "prompt_tokens": self.prompt_tokens,
            "answer_tokens": sum(usage.completion_tokens for usage in usages) if usages else None,
        }
        found = tokens | {name: value and round(value, 4) for name, value in seconds.items()}
        return {name: value for name, value in found.items() if value is not None}


class Span(Protocol):
    """The span of a request. `ids` are those that lines of the log have."""

    @property
    def ids(self) -> Mapping[str, str]: ...
    def end(self, record: RequestRecord) -> None: ...


class Tracing(Protocol):
    """Makes spans of requests."""

    def begin(self, scope: Scope, request_id: str, record: RequestRecord) -> Span | None:
        """The span of a request that is just being recorded; None if it is not traced."""
        ...


class RequestLog:
    """Sets `x-request-id` on every response, to the request's own id or a new one, passes the status to `count`, and
    logs the request when it has ended, and its span if it is traced. The application may add to the `record` in the
    request's state."""

    def __init__(self, app: ASGIApp, count: Callable[[int], None], tracing: Tracing | None = None) -> None:
        self._app = app
        self._count = count
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        usable = 0 < len(given) <= REQUEST_ID_CHARS and given.isascii() and given.isprintable()
        request_id = given if usable else uuid.uuid4().hex
        record = RequestRecord()
        scope.setdefault("state", {}).update(request_id=request_id, record=record)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
                record.status = message["status"]
                self._count(record.status)
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                record.complete = True

        span = None if self._tracing is None else self._tracing.begin(scope, request_id, record)
        token, trace = REQUEST_ID.set(request_id), TRACE.set({} if span is None else span.ids)
        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            # Starlette sends it, outside of all middlewares.
            record.status, record.complete = 500, True
            record.blame(error)
            raise
        finally:
            if scope["path"] not in PROBES:
                self._log(scope, record)
            if span is not None:
                span.end(record)
            TRACE.reset(trace)
            REQUEST_ID.reset(token)

    def _log(self, scope: Scope, record: RequestRecord) -> None:
        client = (scope.get("client") or ("",))[0]
        path = scope.get("raw_path", b"").decode("latin-1")[:PATH_CHARS]
        key = key_of(scope)
        fields = {"client": client} if key is None or not key.name else {"client": client, "key": key.name}
        fields |= {"method": scope["method"], "path": path, "status": record.status}
        fields |= record.numbers() | {"outcome": record.outcome}
        logging.getLogger("asynclane.request").info("request", extra={"fields": fields})
