"""An ASGI middleware around the application: limits on request bodies."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import ApiError, BodyTooLarge, BodyTooSlow, error_response

LINGER_S = 2.0


class BodyLimit:
    """Reads the body before the application does. Refuses it at the first byte too many, or when time is up."""

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
        """Return None if the client left. Raises `BodyTooLarge`."""
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
    """Send the error and close the connection. The rest of the body is discarded for up to `linger_s`: many clients
    send everything before they read, and would lose the response to a connection reset."""

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
