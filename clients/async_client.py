"""The client for many calls at once. `Client` has the same methods; `core`, `calls` and `reader` decide for both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Self, Unpack

import httpx

from . import calls
from .calls import Call, ChatParams, Extra, Messages, Prompt, TextParams, TokenizeParams
from .core import TIMEOUT, Retry, T, http_options, network_errors, parse, stream_errors
from .reader import StreamReader
from .types import Answer, Delta, Model, Reply, Tokens, Usage


class AsyncClient:
    """A client of one server. Use it as an async context manager, or `close` it: it keeps connections.

    Raises `ValueError` for an invalid URL, API key or time limit. Tests replace `transport` and `sleep`: nothing else
    reaches the network or waits.
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

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def chat(
        self, messages: Messages, *, model: str, extra: Extra = None, **options: Unpack[ChatParams]
    ) -> Answer:
        """Return a whole answer. `extra` has parameters that no option names; they are sent as they are."""
        return await self._fetch(calls.chat(model, messages, options, extra))

    def stream_chat(
        self, messages: Messages, *, model: str, lanes: bool = False, extra: Extra = None, **options: Unpack[ChatParams]
    ) -> AsyncStream:
        """Return the same in deltas, without `await`; with `lanes`, also what every step did to the lanes."""
        return self._stream(calls.chat(model, messages, options, extra), lanes)

    async def complete(
        self, prompt: Prompt, *, model: str, extra: Extra = None, **options: Unpack[TextParams]
    ) -> Answer:
        """Continue a text, texts, or their token ids. `Answer.choices` are prompt by prompt."""
        return await self._fetch(calls.complete(model, prompt, options, extra))

    def stream_complete(
        self, prompt: Prompt, *, model: str, lanes: bool = False, extra: Extra = None, **options: Unpack[TextParams]
    ) -> AsyncStream:
        return self._stream(calls.complete(model, prompt, options, extra), lanes)

    async def models(self) -> list[Model]:
        return (await self._fetch(calls.MODELS)).data

    async def model(self, name: str) -> Model:
        return await self._fetch(calls.model(name))

    async def tokenize(self, text: str | Messages, *, model: str, **options: Unpack[TokenizeParams]) -> Tokens:
        """Return the tokens of a text, or of messages in the model's chat template."""
        return await self._fetch(calls.tokenize(model, text, options))

    async def detokenize(self, tokens: Sequence[int], *, model: str) -> str:
        return (await self._fetch(calls.detokenize(model, tokens))).prompt

    async def _fetch(self, call: Call[T]) -> T:
        response = await self._send(call)
        await self._read(response)
        return parse(call.returns, response.content)

    def _stream(self, call: Call[Answer], lanes: bool) -> AsyncStream:
        return AsyncStream(lambda: self._send(calls.streamed(call, lanes)))

    async def _send(self, call: Call[Reply]) -> httpx.Response:
        """Return a successful response whose body has not been read."""
        retries = 0
        while True:
            with network_errors(self._http):
                response = await self._http.send(call.request(self._http), stream=True)
            if response.is_success:
                return response
            await self._read(response)
            await self._sleep(self._retry.wait_after(response, retries))
            retries += 1

    async def _read(self, response: httpx.Response) -> None:
        with network_errors(self._http):
            async with aclosing(response):
                await response.aread()


class AsyncStream:
    """An iterator of deltas. Use it in an `async with` statement: leaving it early stops the answer.

    The request is sent on entering, or for the first delta. `usage` is complete at the end. Another task may `close`
    the stream: a read that waits then raises `Closed`.
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
        with self._reader.lasting_errors():
            await self._open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        with self._reader.lasting_errors():
            return await anext(self._deltas)

    async def close(self) -> None:
        self._reader.close()
        if self._response is not None:
            await self._response.aclose()
        with suppress(RuntimeError):  # another task is in the generator, and ends it now
            await self._deltas.aclose()

    async def _open(self) -> httpx.Response:
        if self._response is None:
            self._response = await self._send()
        return self._response

    async def _read(self) -> AsyncGenerator[Delta, None]:
        async with aclosing(await self._open()) as response:
            with stream_errors():
                async for data in response.aiter_bytes():
                    for delta in self._reader.feed(data):
                        yield delta
                    if self._reader.done:
                        break
            self._reader.end()
