"""The client that blocks. `AsyncClient` has the same methods; `core`, `calls` and `reader` decide for both."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from typing import Self, Unpack

import httpx

from . import calls
from .calls import Call, ChatParams, Extra, Messages, Prompt, TextParams, TokenizeParams
from .core import TIMEOUT, Retry, T, http_options, network_errors, parse, stream_errors
from .reader import StreamReader, wake
from .types import Answer, Delta, Model, Reply, Tokens, Usage


class Client:
    """A client of one server. Use it as a context manager, or `close` it: it keeps connections.

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
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._http = httpx.Client(transport=transport, **http_options(base_url, api_key, timeout))
        self._retry = retry or Retry()
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def chat(self, messages: Messages, *, model: str, extra: Extra = None, **options: Unpack[ChatParams]) -> Answer:
        """Return a whole answer. `extra` has parameters that no option names; they are sent as they are."""
        return self._fetch(calls.chat(model, messages, options, extra))

    def stream_chat(
        self, messages: Messages, *, model: str, lanes: bool = False, extra: Extra = None, **options: Unpack[ChatParams]
    ) -> Stream:
        """Return the same in deltas; with `lanes`, also what every step did to the lanes."""
        return self._stream(calls.chat(model, messages, options, extra), lanes)

    def complete(self, prompt: Prompt, *, model: str, extra: Extra = None, **options: Unpack[TextParams]) -> Answer:
        """Continue a text, texts, or their token ids. `Answer.choices` are prompt by prompt."""
        return self._fetch(calls.complete(model, prompt, options, extra))

    def stream_complete(
        self, prompt: Prompt, *, model: str, lanes: bool = False, extra: Extra = None, **options: Unpack[TextParams]
    ) -> Stream:
        return self._stream(calls.complete(model, prompt, options, extra), lanes)

    def models(self) -> list[Model]:
        return self._fetch(calls.MODELS).data

    def model(self, name: str) -> Model:
        return self._fetch(calls.model(name))

    def tokenize(self, text: str | Messages, *, model: str, **options: Unpack[TokenizeParams]) -> Tokens:
        """Return the tokens of a text, or of messages in the model's chat template."""
        return self._fetch(calls.tokenize(model, text, options))

    def detokenize(self, tokens: Sequence[int], *, model: str) -> str:
        return self._fetch(calls.detokenize(model, tokens)).prompt

    def _fetch(self, call: Call[T]) -> T:
        response = self._send(call)
        self._read(response)
        return parse(call.returns, response.content)

    def _stream(self, call: Call[Answer], lanes: bool) -> Stream:
        return Stream(lambda: self._send(calls.streamed(call, lanes)))

    def _send(self, call: Call[Reply]) -> httpx.Response:
        """Return a successful response whose body has not been read."""
        retries = 0
        while True:
            with network_errors(self._http):
                response = self._http.send(call.request(self._http), stream=True)
            if response.is_success:
                return response
            self._read(response)
            self._sleep(self._retry.wait_after(response, retries))
            retries += 1

    def _read(self, response: httpx.Response) -> None:
        with network_errors(self._http), closing(response):
            response.read()


class Stream:
    """An iterator of deltas. Use it in a `with` statement: leaving it early stops the answer.

    The request is sent on entering, or for the first delta. `usage` is complete at the end. Another thread may `close`
    the stream: a read that waits then raises `Closed`.
    """

    def __init__(self, send: Callable[[], httpx.Response]) -> None:
        self._send = send
        self._response: httpx.Response | None = None
        self._reader = StreamReader()
        self._deltas = self._read()

    @property
    def usage(self) -> Usage | None:
        return self._reader.usage

    def __enter__(self) -> Self:
        with self._reader.lasting_errors():
            self._open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delta:
        with self._reader.lasting_errors():
            return next(self._deltas)

    def close(self) -> None:
        self._reader.close()
        if self._response is not None:
            wake(self._response)
            self._response.close()
        with suppress(ValueError):  # another thread is in the generator, and ends it now
            self._deltas.close()

    def _open(self) -> httpx.Response:
        if self._response is None:
            self._response = self._send()
        return self._response

    def _read(self) -> Generator[Delta, None, None]:
        with closing(self._open()) as response:
            with stream_errors():
                for data in response.iter_bytes():
                    yield from self._reader.feed(data)
                    if self._reader.done:
                        break
            self._reader.end()
