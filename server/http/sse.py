"""Server-sent events. When the client leaves, the work ends by structure: nothing polls for a disconnect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
PROBE = "probe"  # the key in a request's state of bytes that may be sent at any time in the middle of its response
COMMENT = b":\n\n"  # clients ignore it
LINE_BREAKS = {ord(one): f"\\u{ord(one):04x}" for one in "\x85\u2028\u2029"}  # of clients that use `str.splitlines`
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class ClientGone(Exception):
    """The client closed its connection before the response was complete."""


def event(payload: Mapping[str, Any], name: str | None = None) -> bytes:
    """Encode one server-sent event. Its data is one line, whatever a client takes for a line break."""
    data = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    if not data.isascii():
        data = data.translate(LINE_BREAKS)
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data}\n\n".encode()


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, or raise `ClientGone` as soon as the client leaves. `work` has ended when this
    returns. The request's body must have been read."""
    worker = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        raise ClientGone
    finally:
        await _cancel(worker, watcher)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def merge(sources: Sequence[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T], None]:
    """Yield items of all sources as they come, each with its source's index. An error in one source ends all."""
    waiting = {asyncio.ensure_future(anext(source)): index for index, source in enumerate(sources)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            # `done` is a set: sort it, so that items that are ready together come in the order of their sources.
            for task in sorted(done, key=waiting.__getitem__):
                index = waiting.pop(task)
                try:
                    item = task.result()
                except StopAsyncIteration:
                    continue
                yield index, item
                waiting[asyncio.ensure_future(anext(sources[index]))] = index
    finally:
        await _cancel(*waiting)


class EventStream(Response):
    """A response that closes `events`, and then `owner`, when it ends or the client leaves. It begins with the first
    event: what goes wrong before that is raised, for a response of its own."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], owner: AsyncExitStack) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._owner = owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})[PROBE] = COMMENT
        async with self._owner:
            try:
                await until_gone(receive, self._pump(send))
            except ClientGone:
                return

    async def _pump(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        async with aclosing(self._events) as events:
            data = await anext(events, None)
            await send(start)
            while data is not None:
                await send({"type": "http.response.body", "body": data, "more_body": True})
                data = await anext(events, None)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
