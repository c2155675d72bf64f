"""Errors that a client sees, in OpenAI's shape or Anthropic's, so that every SDK raises the exception its users know.

ApiError
|-- InvalidValue            400  a parameter is unknown, unsupported, of the wrong type or out of range
|-- ContextLengthExceeded   400  prompt and answer do not fit the model's context
|-- Unauthorized            401  the API key is missing or wrong
|-- UnknownModel            404
|-- BodyTooSlow             408
|-- TimedOut                408  the answer was not complete within the request's `timeout`, or the server's
|-- BodyTooLarge            413
|-- EncodedBody             415  the body is compressed
|-- Overloaded              429  the queue is full, or too many bodies wait; Retry-After says when to try again
|-- EngineFailure           500  a fault of the server
|-- Draining                503  the server is shutting down
|-- EngineDown              503  the engine has failed, and the process is about to end
`-- TooManyConnections      503  more connections than may be open
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from . import message_errors

INTERRUPTS = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)  # no faults of what they interrupt
SHOWN_CHARS = 80  # of a refused value
PARAM_CHARS = 256  # of a dotted path, in which clients choose names
MESSAGE_CHARS = 4000
# Pydantic's words, as expressions, and ours, in the order in which they are replaced.
WORDS = (
    ("Input should be", "must be"),
    ("String should", "must"),
    ("List should", "must"),
    ("Dictionary should", "must"),
    (" after validation", ""),
    (r" or instance of \w+", ""),
    ("a valid dictionary or object to extract fields from", "an object"),
    ("a valid dictionary", "an object"),
    ("a valid list", "a list"),
    ("a valid ", "a "),
    ("a integer", "a whole number"),
    ("a boolean", "true or false"),
)


class ApiError(Exception):
    """`param` is the dotted path of the parameter that is wrong, `code` OpenAI's error code. Long ones are cut, since
    clients choose names."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.message = _cut(message, MESSAGE_CHARS)
        super().__init__(self.message)
        self.param = None if param is None else _cut(param, PARAM_CHARS)
        self.code = code
        self.headers = headers

    @property
    def status(self) -> int:
        return STATUS[type(self)][0]

    def body(self) -> dict[str, Any]:
        return error_body(self.message, STATUS[type(self)][1], self.param, self.code)


class InvalidValue(ApiError):
    def __init__(self, param: str | None, message: str, *, code: str = "invalid_value") -> None:
        super().__init__(message, param=param, code=code)


class ContextLengthExceeded(ApiError):
    """Lengths are in tokens; `max_tokens` None means that no answer of any length fits. A text that is too long to
    be tokenized has `at_least` so many. A prompt that is scored has `masks` after it instead of an answer."""

    def __init__(
        self,
        limit: int,
        prompt_tokens: int,
        max_tokens: int | None = None,
        *,
        suffix_tokens: int = 0,
        masks: int = 0,
        param: str | None = None,
        at_least: bool = False,
    ) -> None:
        given = f"{prompt_tokens} in the prompt" + (f", {suffix_tokens} in the suffix" if suffix_tokens else "")
        answer = "leaves none for an answer: shorten it"
        if max_tokens is not None:
            total = prompt_tokens + suffix_tokens + max_tokens
            answer = f"{max_tokens} for the answer, {total} in all: lower max_tokens, or shorten the prompt"
        if masks:
            more = f"{masks} open positions" if masks > 1 else "one open position"
            answer = f"{more} after it, {prompt_tokens + masks} in all: shorten the prompt"
        message = f"the context is {limit} tokens, but the request has {given} and {answer}"
        if at_least:
            place = "prompt" if param in (None, "prompt", "messages", "input") else param
            given = f"at least {prompt_tokens} in the {place}"
            message = f"the context is {limit} tokens, but the request has {given}: shorten it"
        super().__init__(message, param=param, code="context_length_exceeded")
        self.lengths = limit, prompt_tokens, max_tokens or 0, suffix_tokens, masks


class Unauthorized(ApiError):
    def __init__(self) -> None:
        super().__init__(
            "missing or wrong API key: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )


class UnknownModel(ApiError):
    def __init__(self, name: str, served: Sequence[str]) -> None:
        message = f"the model {shown(name)} does not exist here; this server has {', '.join(map(repr, served))}"
        super().__init__(message, param="model", code="model_not_found")


class BodyTooSlow(ApiError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"the body {reason}", code="request_timeout")


class BodyTooLarge(ApiError):
    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the body is larger than {limit_bytes} bytes", code="body_too_large")


class EncodedBody(ApiError):
    def __init__(self, encoding: str) -> None:
        message = f"the body is encoded as {shown(encoding)}: send it without Content-Encoding"
        super().__init__(message, code="unsupported_encoding", headers={"accept-encoding": "identity"})


class Overloaded(ApiError):
    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message, code="overloaded", headers={"retry-after": str(retry_after_s)})
        self.retry_after_s = retry_after_s


class TimedOut(ApiError):
    def __init__(self, message: str) -> None:
        # OpenAI's SDKs would send it again at once, for as much work as before.
        super().__init__(message, param="timeout", code="request_timeout", headers={"x-should-retry": "false"})


class EngineFailure(ApiError):
    def __init__(self, message: str) -> None:
        super().__init__(message, code="engine_failure")


class Draining(ApiError):
    def __init__(self, message: str = "the server is shutting down") -> None:
        super().__init__(message, code="draining")


class EngineDown(ApiError):
    def __init__(self, message: str) -> None:
        super().__init__(message, code="engine_down")


class TooManyConnections(ApiError):
    def __init__(self, open_now: str) -> None:
        message = f"{open_now} are open, and no more may be: try again later"
        super().__init__(message, code="too_many_connections", headers={"retry-after": "1"})


# HTTP status and OpenAI's error type. Anthropic's: `message_errors.TYPES`.
STATUS: Mapping[type[ApiError], tuple[int, str]] = {
    InvalidValue: (400, "invalid_request_error"),
    ContextLengthExceeded: (400, "invalid_request_error"),
    Unauthorized: (401, "authentication_error"),
    UnknownModel: (404, "invalid_request_error"),
    BodyTooSlow: (408, "invalid_request_error"),
    TimedOut: (408, "invalid_request_error"),
    BodyTooLarge: (413, "invalid_request_error"),
    EncodedBody: (415, "invalid_request_error"),
    Overloaded: (429, "rate_limit_error"),
    EngineFailure: (500, "server_error"),
    Draining: (503, "server_error"),
    EngineDown: (503, "server_error"),
    TooManyConnections: (503, "server_error"),
}


def error_body(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def shown(value: object) -> str:
    """Quote a refused value, shortened. The work does not grow with the value."""
    text = ""
    for piece in _pieces(value):
        text += piece
        if len(text) > SHOWN_CHARS:
            break
    return _cut(text, SHOWN_CHARS)


def _pieces(value: object) -> Iterator[str]:
    """The parts of `repr(value)`, with JSON's words for true, false and null. Long texts are cut, since only the first
    characters are shown."""
    if isinstance(value, list | dict):
        opening, closing = "[]" if isinstance(value, list) else "{}"
        yield opening
        for at, item in enumerate(value):
            yield ", " if at else ""
            yield from _pieces(item)
            if isinstance(value, dict):
                yield ": "
                yield from _pieces(value[item])
        yield closing
    elif value is None or isinstance(value, bool):
        yield json.dumps(value)
    else:
        yield repr(value[: SHOWN_CHARS + 1] if isinstance(value, str | bytes) else value)


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[: chars - 3] + "..."


def dotted(names: Iterable[object]) -> str:
    """The path of a parameter."""
    return _cut(".".join(_cut(str(name), PARAM_CHARS) for name in names), PARAM_CHARS)


def error_response(error: ApiError, scope: Scope) -> Response:
    """The response to the request of this scope."""
    return AsciiJson(body_for(scope, error), error.status, error.headers)


def body_for(scope: Scope, error: ApiError) -> dict[str, Any]:
    """The body of an error, in the shape that the endpoint has."""
    return _shaped(scope, error.status, error.message, error.body())


def _shaped(scope: Scope, status: int, message: str, body: dict[str, Any]) -> dict[str, Any]:
    """The `body` of an error, or what stands for it where errors have Anthropic's shape."""
    if not message_errors.concerns(scope["path"]):
        return body
    return message_errors.message_error(status, message, scope.get("state", {}).get("request_id"))


def from_exception(error: Exception) -> ApiError:
    """The error to send for `error`. Details of an unexpected one stay in the log."""
    return error if isinstance(error, ApiError) else EngineFailure("internal error")


class AsciiJson(JSONResponse):
    """JSON in ASCII: messages quote values that clients sent, with lone surrogates, which UTF-8 cannot encode."""

    def render(self, content: object) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode("ascii")


class Panics:
    """Makes exceptions of Rust panics, which libraries raise as a BaseException that no error handler sees."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except (Exception, *INTERRUPTS):
            raise
        except BaseException as panic:
            raise RuntimeError("a library panicked") from panic


def install_error_handlers(app: FastAPI, count: Callable[[int], None]) -> None:
    """`count` gets the status of responses to unexpected exceptions, which no middleware of `app` sees."""

    def noted(request: Request, error: ApiError) -> Response:
        record = getattr(request.state, "record", None)
        if record is not None:
            record.blame(error)
        return error_response(error, request.scope)

    async def api_error(request: Request, error: Exception) -> Response:
        return noted(request, from_exception(error))

    async def validation_error(request: Request, error: Exception) -> Response:
        # `http.body.JsonRoute` has validated every body that is JSON, so the content type was wrong.
        message = "the body must be JSON, sent with 'Content-Type: application/json'"
        return noted(request, InvalidValue(None, message))

    async def http_error(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            return await unexpected(request, error)
        if isinstance(error.__cause__, ApiError):  # FastAPI wraps whatever reading a body raises
            return noted(request, error.__cause__)
        if error.__cause__ is not None:
            raise error.__cause__
        message = _not_found(request, error) if error.status_code in (404, 405) else str(error.detail)
        body = error_body(message, "invalid_request_error", None, None)
        body = _shaped(request.scope, error.status_code, message, body)
        return AsciiJson(body, error.status_code, error.headers)

    async def unexpected(request: Request, error: Exception) -> Response:
        response = error_response(from_exception(error), request.scope)
        request_id = getattr(request.state, "request_id", None)
        if request_id is not None:
            response.headers["x-request-id"] = request_id
        count(response.status_code)
        return response

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(RequestValidationError, validation_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, unexpected)


def _not_found(request: Request, error: HTTPException) -> str:
    """The message for a path or method that does not exist; it lists those that do."""
    path, allowed = shown(request.url.path), (error.headers or {}).get("Allow")
    if allowed:
        return f"{path} does not take {request.method}, but {allowed}"
    return f"there is no {path} here; there are /, /openapi.json, {', '.join(request.app.openapi()['paths'])}"


def from_validation(detail: Mapping[str, Any]) -> InvalidValue:
    """Translate one of pydantic's error details. Its location becomes a dotted path, followed by the `param` of
    `http.body.refused`."""
    kind, context, path = detail.get("type"), detail.get("ctx") or {}, list(detail.get("loc", ()))
    if kind == "refused":
        param = dotted([*path, *filter(None, [context["param"]])])
        return InvalidValue(param, f"{ascii_name(param)}: {context['reason']}", code=context["code"])
    param = dotted(path)
    if kind == "missing":
        return InvalidValue(param, f"{param} is required", code="missing_parameter")
    reason = str(detail.get("msg"))
    for theirs, ours in WORDS:
        reason = re.sub(theirs, ours, reason)
    given = "" if ", not " in reason else f", not {shown(detail.get('input'))}"  # of lists, pydantic gives the length
    return InvalidValue(param, f"{ascii_name(param)}: {reason}{given}")


def ascii_name(param: str) -> str:
    return param if param.isascii() and param.isprintable() else shown(param)
