"""Tells clients what went wrong in OpenAI's words, so that every SDK raises the exception its users know.

ApiError
|-- InvalidValue            400  a parameter that is unknown, unsupported, of the wrong type or out of range
|-- ContextLengthExceeded   400  prompt and answer do not fit the model's context
|-- Unauthorized            401  missing or wrong API key
|-- UnknownModel            404
|-- BodyTooSlow             408
|-- BodyTooLarge            413
|-- Overloaded              429  the queue is full; says when to try again
|-- EngineFailure           500  our own fault
`-- Draining                503  the server is shutting down
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

SHOWN_CHARS = 80  # of a refused value; the client knows the rest
# Pydantic's words and ours, in the order in which they are replaced.
WORDS = (
    ("Input should be", "must be"),
    ("String should", "must"),
    ("List should", "must"),
    ("Dictionary should", "must"),
    (" after validation", ""),
    ("a valid dictionary or object to extract fields from", "an object"),
    ("a valid dictionary", "an object"),
    ("a valid list", "a list"),
    ("a valid ", "a "),
    ("a integer", "a whole number"),
    ("a boolean", "true or false"),
)


class ApiError(Exception):
    """`status` and OpenAI's error `type` belong to the class; `param` is the dotted path of what is wrong."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        return error_body(self.message, self.type, self.param, self.code)

    def headers(self) -> dict[str, str]:
        return {}


class InvalidValue(ApiError):
    status = 400
    type = "invalid_request_error"

    def __init__(self, param: str | None, message: str, *, code: str = "invalid_value") -> None:
        super().__init__(message, param=param, code=code)


class ContextLengthExceeded(ApiError):
    status = 400
    type = "invalid_request_error"

    def __init__(
        self,
        limit: int,
        prompt_tokens: int,
        max_tokens: int | None = None,
        *,
        suffix_tokens: int = 0,
        param: str | None = None,
    ) -> None:
        given = f"{prompt_tokens} in the prompt" + (f", {suffix_tokens} in the suffix" if suffix_tokens else "")
        asked = "no room for an answer"
        if max_tokens is not None:
            asked = f"{max_tokens} for the answer, {prompt_tokens + suffix_tokens + max_tokens} in all"
        message = f"the context is {limit} tokens, but you asked for {given} and {asked}"
        super().__init__(message, param=param, code="context_length_exceeded")


class Unauthorized(ApiError):
    status = 401
    type = "authentication_error"

    def __init__(self) -> None:
        super().__init__("missing or wrong API key: send 'Authorization: Bearer KEY'", code="invalid_api_key")

    def headers(self) -> dict[str, str]:
        return {"www-authenticate": "Bearer"}


class UnknownModel(ApiError):
    status = 404
    type = "invalid_request_error"

    def __init__(self, name: str, served: str) -> None:
        message = f"the model {shown(name)} does not exist here; this server has {served!r}"
        super().__init__(message, param="model", code="model_not_found")


class BodyTooSlow(ApiError):
    status = 408
    type = "invalid_request_error"

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"the body was not complete within {limit_s:g} seconds", code="request_timeout")


class BodyTooLarge(ApiError):
    status = 413
    type = "invalid_request_error"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the body is larger than {limit_bytes} bytes", code="body_too_large")


class Overloaded(ApiError):
    status = 429
    type = "rate_limit_error"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message, code="overloaded")
        self.retry_after_s = retry_after_s

    def headers(self) -> dict[str, str]:
        return {"retry-after": str(self.retry_after_s)}


class EngineFailure(ApiError):
    def __init__(self, message: str) -> None:
        super().__init__(message, code="engine_failure")


class Draining(ApiError):
    status = 503

    def __init__(self, message: str = "the server is shutting down") -> None:
        super().__init__(message, code="draining")


def error_body(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def shown(value: object) -> str:
    """A refused value as a message quotes it."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."


def error_response(error: ApiError) -> Response:
    return AsciiJson(error.body(), error.status, error.headers())


def from_exception(error: Exception) -> ApiError:
    """What a client may know of `error`: an unexpected one keeps its details to the log."""
    return error if isinstance(error, ApiError) else EngineFailure("internal error")


class AsciiJson(JSONResponse):
    """Error texts quote what clients sent, lone surrogates included, which UTF-8 cannot carry."""

    def render(self, content: object) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode("ascii")


def install_error_handlers(app: FastAPI, count: Callable[[int], None]) -> None:
    """`count` is told the status of an unexpected exception's response, which no middleware of `app` sees."""

    async def api_error(request: Request, error: Exception) -> Response:
        return error_response(from_exception(error))

    async def validation_error(request: Request, error: Exception) -> Response:
        details = error.errors() if isinstance(error, RequestValidationError) else []
        return error_response(from_validation(details[0] if details else {}))

    async def http_error(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            return await unexpected(request, error)
        if isinstance(error.__cause__, ApiError):  # FastAPI wraps whatever reading a body raises
            return error_response(error.__cause__)
        message = _nowhere(request, error) if error.status_code in (404, 405) else str(error.detail)
        body = error_body(message, "invalid_request_error", None, None)
        return AsciiJson(body, error.status_code, error.headers)

    async def unexpected(request: Request, error: Exception) -> Response:
        response = error_response(from_exception(error))
        request_id = getattr(request.state, "request_id", None)
        if request_id is not None:
            response.headers["x-request-id"] = request_id
        count(response.status_code)
        return response

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(RequestValidationError, validation_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, unexpected)


def _nowhere(request: Request, error: HTTPException) -> str:
    """Of a path or a method that does not exist: those that do."""
    path, allowed = shown(request.url.path), (error.headers or {}).get("Allow")
    if allowed:
        return f"{path} does not take {request.method}, but {allowed}"
    return f"there is no {path} here; there are {', '.join(request.app.openapi()['paths'])}"


def from_validation(detail: Mapping[str, Any]) -> InvalidValue:
    """OpenAI's words for one of pydantic's error details. Its location, and a `param` which a validator of
    ours put into the context, become a dotted path."""
    kind, context = detail.get("type"), detail.get("ctx") or {}
    path = [str(part) for part in detail.get("loc", ()) if part != "body"]
    if kind == "refused":
        param = ".".join([*path, *filter(None, [context["param"]])])
        return InvalidValue(param, f"{ascii_name(param)}: {context['reason']}", code=context["code"])
    if not path:  # what is JSON has been read before: `body.parse`
        return InvalidValue(None, "the body must be JSON, sent with 'Content-Type: application/json'")
    param = ".".join(path)
    if kind == "missing":
        return InvalidValue(param, f"{param} is required", code="missing_parameter")
    reason = str(detail.get("msg"))
    for theirs, ours in WORDS:
        reason = reason.replace(theirs, ours)
    given = "" if ", not " in reason else f", not {shown(detail.get('input'))}"  # of lists, their length is told
    return InvalidValue(param, f"{param}: {reason}{given}")


def ascii_name(param: str) -> str:
    return param if param.isascii() and param.isprintable() else shown(param)
