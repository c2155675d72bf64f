"""Reads request bodies: in time, no larger than allowed, and as JSON in which no name comes twice."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import (
    ApiError,
    BodyTooLarge,
    BodyTooSlow,
    InvalidValue,
    error_response,
    shown,
)

LINGER_S = 2.0
JSON_KINDS = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}


class BodyLimit:
    """Reads the body before the application does, and refuses it at the first byte too many or when time is up."""

    def __init__(self, app: ASGIApp, limit_bytes: int, limit_s: float) -> None:
        self._app = app
        self._limit_bytes = limit_bytes
        self._limit_s = limit_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._limit_s):
                body = await self._read(scope, receive)
        except TimeoutError:
            await _refuse(BodyTooSlow(self._limit_s), scope, receive, send)
            return
        except BodyTooLarge as error:
            await _refuse(error, scope, receive, send, LINGER_S)
            return
        if body is None:
            return
        whole = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> Message:
            return next(whole, None) or await receive()

        await self._app(scope, replay, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """None: the client left. Raises `BodyTooLarge`."""
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced) > self._limit_bytes:
            raise BodyTooLarge(self._limit_bytes)
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._limit_bytes:
                raise BodyTooLarge(self._limit_bytes)
        return bytes(body)


async def _refuse(error: ApiError, scope: Scope, receive: Receive, send: Send, linger_s: float = 0) -> None:
    """Answers, and closes the connection. Within `linger_s`, what still comes is thrown away: many clients send all
    before they read, and closing on what they send would take the answer from them."""

    async def send_unfinished(message: Message) -> None:
        await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

    response = error_response(error)
    response.headers["connection"] = "close"
    await response(scope, receive, send_unfinished)
    with suppress(TimeoutError):
        async with asyncio.timeout(linger_s):
            while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                pass
    await send({"type": "http.response.body", "body": b""})


class JsonRoute(APIRoute):
    """A route whose body is read by `parse`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            read = JsonRequest(request.scope, request.receive)
            if not await read.body():  # FastAPI would take it for null
                raise InvalidValue(None, "the body is empty: send a JSON object", code="invalid_json")
            return await handler(read)

        return handle


class JsonRequest(Request):
    async def json(self) -> dict[str, Any]:
        return parse(await self.body())


def parse(body: bytes) -> dict[str, Any]:
    """Raises `InvalidValue`, which says where the body is no JSON."""
    try:
        found = json.loads(body.decode("utf-8-sig"), object_pairs_hook=once)
    except UnicodeDecodeError as error:
        raise InvalidValue(None, f"the body is not UTF-8 at byte {error.start}", code="invalid_json") from None
    except RecursionError:
        raise InvalidValue(None, "the body nests too deep", code="invalid_json") from None
    except json.JSONDecodeError as error:  # which says line, column and character
        raise InvalidValue(None, f"the body is not valid JSON: {error}", code="invalid_json") from None
    except ValueError:
        most = sys.get_int_max_str_digits()
        raise InvalidValue(
            None, f"the body has a number of more than {most} digits, which cannot be read", code="invalid_json"
        ) from None
    if not isinstance(found, dict):
        kind = JSON_KINDS.get(type(found), "a number")
        raise InvalidValue(None, f"the body must be a JSON object, not {kind}", code="invalid_json")
    return found


def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Which of two values was meant, nobody can know. Raises `InvalidValue`."""
    found = dict(pairs)
    if len(found) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise InvalidValue(name, f"{shown(name)} is given more than once", code="duplicate_parameter")
    return found
