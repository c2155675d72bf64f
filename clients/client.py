"""Talks to a server, one call at a time. `AsyncClient` has the same calls; `core` decides for both."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar, Unpack

import httpx

from . import calls
from .calls import Call, ChatOptions, CompletionOptions, Extra, Message, Prompt, TokenizeOptions
from .core import TIMEOUT, Retry, encoded, http_options, parse, refusal, told, told_within_stream
from .reader import StreamReader, wake
from .types import Answer, Delta, Model, Reply, Tokens, Usage

T = TypeVar("T", bound=Reply)


class Client:
    """Holds connections: use it as a context manager, or `close` it.

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
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._http = httpx.Client(transport=transport, **http_options(base_url, api_key, timeout))
        self._retry = retry or Retry()
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def chat(
        self, messages: Sequence[Message], *, model: str, extra: Extra = None, **options: Unpack[ChatOptions]
    ) -> Answer:
        """A whole answer. `extra` are parameters that no option names; they go into the body as they are."""
        return self._ask(calls.chat(model, messages, options, extra))

    def stream_chat(
        self,
        messages: Sequence[Message],
        *,
        model: str,
        lanes: bool = False,
        extra: Extra = None,
        **options: Unpack[ChatOptions],
    ) -> Stream:
        """The same in deltas; with `lanes` also what every step did to the lanes."""
        return self._stream(calls.streamed(calls.chat(model, messages, options, extra), lanes))

    def complete(
        self, prompt: Prompt, *, model: str, extra: Extra = None, **options: Unpack[CompletionOptions]
    ) -> Answer:
        """Goes on with a text, texts, or their token ids. `Answer.choices` are prompt by prompt."""
        return self._ask(calls.complete(model, prompt, options, extra))

    def stream_complete(
        self,
        prompt: Prompt,
        *,
        model: str,
        lanes: bool = False,
        extra: Extra = None,
        **options: Unpack[CompletionOptions],
    ) -> Stream:
        return self._stream(calls.streamed(calls.complete(model, prompt, options, extra), lanes))

    def models(self) -> list[Model]:
        return self._ask(calls.MODELS).data

    def model(self, name: str) -> Model:
        return self._ask(calls.model(name))

    def tokenize(self, text: str | Sequence[Message], *, model: str, **options: Unpack[TokenizeOptions]) -> Tokens:
        """The tokens of a text, or of messages in the model's chat template."""
        return self._ask(calls.tokenize(model, text, options))

    def detokenize(self, tokens: Sequence[int], *, model: str) -> str:
        return self._ask(calls.detokenize(model, tokens)).prompt

    def _ask(self, call: Call[T]) -> T:
        response = self._send(call)
        self._read(response)
        return parse(call.returns, response.content)

    def _stream(self, call: Call[Answer]) -> Stream:
        return Stream(lambda: self._send(call))

    def _send(self, call: Call[Reply]) -> httpx.Response:
        """A response that was not refused, its body still to come."""
        content = None if call.body is None else encoded(call.body)
        retries = 0
        while True:
            with told(self._http):
                request = self._http.build_request(call.method, call.path, content=content, headers=call.headers)
                response = self._http.send(request, stream=True)
            if response.is_success:
                return response
            self._read(response)
            error = refusal(response, self._retry.clock)
            wait_s = self._retry.wait_s(error, retries)
            if wait_s is None:
                raise error
            self._sleep(wait_s)
            retries += 1

    def _read(self, response: httpx.Response) -> None:
        try:
            with told(self._http):
                response.read()
        finally:
            response.close()


class Stream:
    """An iterator of deltas, best used in a `with` statement: leaving it early stops the answer.

    The request is sent on entering, or for the first delta. `usage` is known at the end. `close` may be called by
    another thread: what reads is then told that it is closed, at once or, in a queue, when its turn comes.
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
        with self._reader.lasting():
            self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delta:
        with self._reader.lasting():
            return next(self._deltas)

    def close(self) -> None:
        self._reader.close()
        if self._response is not None:
            wake(self._response)
            self._response.close()
        with suppress(ValueError):  # another thread is within it, and ends it now
            self._deltas.close()

    def _open(self) -> httpx.Response:
        if self._response is None:
            self._response = self._send()
        return self._response

    def _read(self) -> Generator[Delta, None, None]:
        response = self._open()
        try:
            with told_within_stream():
                for data in response.iter_bytes():
                    yield from self._reader.feed(data)
                    if self._reader.done:
                        break
            self._reader.end()
        finally:
            response.close()
