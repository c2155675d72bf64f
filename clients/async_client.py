"""Talks to a server, many calls at once. `Client` has the same calls; `core` decides for both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar, Unpack

import httpx

from . import calls
from .calls import Call, ChatOptions, CompletionOptions, Extra, Message, Prompt, TokenizeOptions
from .core import TIMEOUT, Retry, encoded, http_options, parse, refusal, told, told_within_stream
from .reader import StreamReader
from .types import Answer, Delta, Model, Reply, Tokens, Usage

T = TypeVar("T", bound=Reply)


class AsyncClient:
    """Holds connections: use it as an async context manager, or `close` it.

    Raises `ValueError` for a URL, a key or a limit that is none. `transport` is the one way to the network, and `sleep`
    the one way to wait: tests put their own there.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout: httpx.Timeout | float | None = TIMEOUT,
        retry: Retry | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._http = httpx.AsyncClient(transport=transport, **http_options(base_url, api_key, timeout))
        self._retry = retry or Retry()
        self._sleep = sleep

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def chat(
        self, messages: Sequence[Message], *, model: str, extra: Extra = None, **options: Unpack[ChatOptions]
    ) -> Answer:
        """A whole answer. `extra` are parameters that no option names; they go into the body as they are."""
        return await self._ask(calls.chat(model, messages, options, extra))

    def stream_chat(
        self,
        messages: Sequence[Message],
        *,
        model: str,
        lanes: bool = False,
        extra: Extra = None,
        **options: Unpack[ChatOptions],
    ) -> AsyncStream:
        """The same in deltas, not awaited; with `lanes` also what every step did to the lanes."""
        return self._stream(calls.streamed(calls.chat(model, messages, options, extra), lanes))

    async def complete(
        self, prompt: Prompt, *, model: str, extra: Extra = None, **options: Unpack[CompletionOptions]
    ) -> Answer:
        """Goes on with a text, texts, or their token ids. `Answer.choices` are prompt by prompt."""
        return await self._ask(calls.complete(model, prompt, options, extra))

    def stream_complete(
        self,
        prompt: Prompt,
        *,
        model: str,
        lanes: bool = False,
        extra: Extra = None,
        **options: Unpack[CompletionOptions],
    ) -> AsyncStream:
        return self._stream(calls.streamed(calls.complete(model, prompt, options, extra), lanes))

    async def models(self) -> list[Model]:
        return (await self._ask(calls.MODELS)).data

    async def model(self, name: str) -> Model:
        return await self._ask(calls.model(name))

    async def tokenize(
        self, text: str | Sequence[Message], *, model: str, **options: Unpack[TokenizeOptions]
    ) -> Tokens:
        """The tokens of a text, or of messages in the model's chat template."""
        return await self._ask(calls.tokenize(model, text, options))

    async def detokenize(self, tokens: Sequence[int], *, model: str) -> str:
        return (await self._ask(calls.detokenize(model, tokens))).prompt

    async def _ask(self, call: Call[T]) -> T:
        response = await self._send(call)
        await self._read(response)
        return parse(call.returns, response.content)

    def _stream(self, call: Call[Answer]) -> AsyncStream:
        return AsyncStream(lambda: self._send(call))

    async def _send(self, call: Call[Reply]) -> httpx.Response:
        """A response that was not refused, its body still to come."""
        content = None if call.body is None else encoded(call.body)
        retries = 0
        while True:
            with told(self._http):
                request = self._http.build_request(call.method, call.path, content=content, headers=call.headers)
                response = await self._http.send(request, stream=True)
            if response.is_success:
                return response
            await self._read(response)
            error = refusal(response, self._retry.clock)
            wait_s = self._retry.wait_s(error, retries)
            if wait_s is None:
                raise error
            await self._sleep(wait_s)
            retries += 1

    async def _read(self, response: httpx.Response) -> None:
        try:
            with told(self._http):
                await response.aread()
        finally:
            await response.aclose()


class AsyncStream:
    """An iterator of deltas, best used in an `async with` statement: leaving it early stops the answer.

    The request is sent on entering, or for the first delta. `usage` is known at the end. `close` may be called by
    another task: what reads is then told that it is closed, at once or, in a queue, when its turn comes.
    """

    def __init__(self, send: Callable[[], Awaitable[httpx.Response]]) -> None:
        self._send = send
        self._response: httpx.Response | None = None
        self._reader = StreamReader()
        self._deltas = self._read()

    @property
    def usage(self) -> Usage | None:
        return self._reader.usage

    async def __aenter__(self) -> Self:
        with self._reader.lasting():
            await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        with self._reader.lasting():
            return await anext(self._deltas)

    async def close(self) -> None:
        self._reader.close()
        if self._response is not None:
            await self._response.aclose()
        with suppress(RuntimeError):  # another task is within it, and ends it now
            await self._deltas.aclose()

    async def _open(self) -> httpx.Response:
        if self._response is None:
            self._response = await self._send()
        return self._response

    async def _read(self) -> AsyncGenerator[Delta, None]:
        response = await self._open()
        try:
            with told_within_stream():
                async for data in response.aiter_bytes():
                    for delta in self._reader.feed(data):
                        yield delta
                    if self._reader.done:
                        break
            self._reader.end()
        finally:
            await response.aclose()
