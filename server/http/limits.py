"""Limits on request bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import ApiError, BodyTooLarge, BodyTooSlow, Overloaded, error_response
from ..off_loop import OffLoop
from ..shares import Shares
from .keys import client_of

LINGER_S = 2.0
GRACE_S = 10.0  # in which a body may come at any rate
SMALL_BYTES = 1 << 16  # of bodies that are read however much others send


class Bodies:
    """Reads the bodies of all connections. Refuses one at the first byte too many, when time is up, if it comes slower
    than `least_rate` bytes a second, and if all that are not yet read take more than `total_bytes`, and the client's
    more than its share of these."""

    def __init__(self, off_loop: OffLoop, limit_bytes: int, limit_s: float, least_rate: int, total_bytes: int) -> None:
        self.off_loop = off_loop  # for bodies that take long to parse
        self._limit_bytes = limit_bytes
        self._limit_s = limit_s
        self._least_rate = least_rate
        self._total_bytes = total_bytes
        self._unread = Shares(total_bytes)

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Call `app` with the whole body, or send a refusal."""
        counted, client = 0, client_of(scope)

        def count(size: int) -> None:
            nonlocal counted
            more = size - counted
            if size > SMALL_BYTES and more > 0 and not self._unread.admits(client, more):
                raise Overloaded(f"more than {self._total_bytes} bytes of bodies wait to be read")
            self._unread.give(client, counted)
            self._unread.take(client, size)
            counted = size

        async def replay() -> Message:
            if whole:
                return whole.pop()  # nothing else may hold the bytes
            count(0)  # a request that waits for its client to leave has been read
            return await receive()

        try:
            try:
                body = await self._read(scope, receive, count)
            except (BodyTooLarge, BodyTooSlow, Overloaded) as error:
                count(0)
                await _refuse(error.with_traceback(None), scope, receive, send)  # the traceback has what was read
                return
            except ClientDisconnect:
                return
            whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
            del body
            await app(scope, replay, send)
        finally:
            count(0)

    async def _read(self, scope: Scope, receive: Receive, count: Callable[[int], None]) -> bytes:
        """Raises `BodyTooLarge`, `BodyTooSlow`, `Overloaded` and `ClientDisconnect`."""
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced) > self._limit_bytes:
            raise BodyTooLarge(self._limit_bytes)
        body, more, slowest_s = bytearray(), True, GRACE_S
        started = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(None) as timer:
                while more:
                    slowest_s = GRACE_S + len(body) / self._least_rate
                    timer.reschedule(started + min(self._limit_s, slowest_s))
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > self._limit_bytes:
                        raise BodyTooLarge(self._limit_bytes)
                    count(len(body))
        except TimeoutError:
            if slowest_s < self._limit_s:
                raise BodyTooSlow(f"came slower than {self._least_rate} bytes a second") from None
            raise BodyTooSlow(f"was not complete within {self._limit_s:g} seconds") from None
        return bytes(body)


async def _refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Send the error and close the connection. The rest of the body is discarded for up to `LINGER_S`: many clients
    send everything before they read, and would lose the response to a connection reset."""

    async def send_unfinished(message: Message) -> None:
        await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

    response = error_response(error, scope)
    response.headers["connection"] = "close"
    await response(scope, receive, send_unfinished)
    with suppress(TimeoutError):
        async with asyncio.timeout(0 if isinstance(error, BodyTooSlow) else LINGER_S):
            while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                pass
    await send({"type": "http.response.body", "body": b""})
