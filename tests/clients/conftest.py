"""A server in a few lines, at the transport of either client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import httpx
import pytest

from asynclane.clients import NEVER, AsyncClient, AsyncStream, Client


def chunk(text: str | None = None, finish: str | None = None, **more: Any) -> str:
    delta = {} if text is None else {"content": text}
    body = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


HI: Any = [{"role": "user", "content": "Hi"}]
DONE = "data: [DONE]\n\n"
USAGE = 'data: {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}}\n\n'
ANSWER = chunk("") + chunk("Hel") + chunk("lo wörld") + chunk(finish="stop") + USAGE + DONE
MODELS = '{"object": "list", "data": [{"id": "tiny-llada", "object": "model"}]}'


class Stream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Sends parts one by one; a part that is an exception is raised."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        for part in self.parts:
            if isinstance(part, BaseException):
                raise part
            yield part.encode() if isinstance(part, str) else part

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self:
            yield part

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


def replies(*parts: Any, status: int = 200, **headers: str) -> Callable[[], httpx.Response]:
    """Return a server that always sends these parts."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda: httpx.Response(status, headers=named, stream=Stream(list(parts)))


def failing(error: Exception) -> Callable[[], httpx.Response]:
    def fail() -> httpx.Response:
        raise error

    return fail


def streamed(connect: Any, *parts: Any, **response: Any) -> Any:
    """Return all deltas and the usage. A single part may be the server itself."""
    reply = parts[0] if len(parts) == 1 and callable(parts[0]) else replies(*parts, **response)
    with connect(reply, retry=NEVER) as (client, _), client.stream_chat(HI, model="m") as stream:
        return list(stream), stream.usage


def text(connect: Any, *parts: Any, **response: Any) -> str:
    return "".join(delta.text for delta in streamed(connect, *parts, **response)[0])


class Server(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Answers with `reply`, and keeps the requests."""

    def __init__(self, reply: Callable[[], httpx.Response]) -> None:
        self.reply = reply
        self.requests: list[httpx.Request] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.url.path == "/v1/models":
            return httpx.Response(200, text=MODELS)
        return self.reply()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self.handle_request(request)

    def body(self, index: int = -1) -> Any:
        return json.loads(self.requests[index].content)


class Blocking:
    """The async client, or a stream of it, with the methods of the other one: both keep the same promises."""

    def __init__(self, runner: asyncio.Runner, inner: Any) -> None:
        self.runner = runner
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.inner, name)
        if not callable(member):
            return member

        def call(*arguments: Any, **options: Any) -> Any:
            result = member(*arguments, **options)
            return Blocking(self.runner, result) if isinstance(result, AsyncStream) else self.wait(result)

        return call

    def wait(self, awaitable: Any) -> Any:
        async def whole() -> Any:
            return await awaitable

        return self.runner.run(whole())

    def __enter__(self) -> Self:
        self.wait(self.inner.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self.wait(self.inner.__aexit__(*error))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self.wait(anext(self.inner))
        except StopAsyncIteration:
            raise StopIteration from None


@contextmanager
def open_client(reply: Callable[[], httpx.Response], **options: Any) -> Iterator[tuple[Client, Server]]:
    server = Server(reply)
    with Client(**{"base_url": "http://test", "transport": server, **options}) as client:
        yield client, server


@contextmanager
def open_async_client(reply: Callable[[], httpx.Response], **options: Any) -> Iterator[tuple[Any, Server]]:
    server = Server(reply)
    sleep = options.pop("sleep", lambda seconds: None)

    async def async_sleep(seconds: float) -> None:
        sleep(seconds)

    with asyncio.Runner() as runner:
        inner = AsyncClient(**{"base_url": "http://test", "transport": server, "sleep": async_sleep, **options})
        with Blocking(runner, inner) as client:
            yield client, server


@pytest.fixture
def connect() -> Callable[..., Any]:
    return open_client


@pytest.fixture(params=[open_client, open_async_client], ids=["sync", "async"])
def connect_either(request: pytest.FixtureRequest) -> Any:
    return request.param
