"""Talks to a server in two calls, the models and a streamed chat, each with errors that say what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from .errors import ConnectionFailed, StatusError, StreamError
from .sse import Event, EventDecoder
from .types import ChatDelta, Chunk, Fault, FaultBody, Message, ModelList, Usage

Parsed = TypeVar("Parsed", bound=BaseModel)

DONE = "[DONE]"
# A queue may be long, so reading has no limit; connecting does.
TIMEOUT = httpx.Timeout(None, connect=10.0)


class Client:
    """Holds connections: use it as a context manager, or `close` it. Tests put a server into `transport`."""

    def __init__(
        self, base_url: str, *, api_key: str | None = None, transport: httpx.BaseTransport | None = None
    ) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.Client(
            base_url=base_url.rstrip("/").removesuffix("/v1"),
            headers=headers,
            timeout=TIMEOUT,
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def models(self) -> list[str]:
        """The names that `chat` takes."""
        try:
            response = self._http.get("/v1/models")
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        _check_status(response)
        return [model.id for model in _parse(ModelList, response.text).data]

    def chat(self, messages: Sequence[Message], *, model: str, options: Mapping[str, Any] | None = None) -> ChatStream:
        """A streamed answer, to be used in a `with` statement; leaving it early stops the answer.

        `options` are the request's other parameters by name: max_tokens, temperature, decoder and so on. Usage is
        always asked for; `stream_options` may ask for more.
        """
        body = {
            **(options or {}),
            "model": model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {**(options or {}).get("stream_options", {}), "include_usage": True},
        }
        return ChatStream(self._http.stream("POST", "/v1/chat/completions", json=body), self._unreachable)

    def _unreachable(self, error: httpx.TransportError) -> ConnectionFailed:
        return ConnectionFailed(f"no server at {self._http.base_url}: {error}")


class ChatStream:
    """An iterator of deltas; `usage` is known once it has ended."""

    def __init__(self, opening: AbstractContextManager[httpx.Response], unreachable: Any) -> None:
        self._opening = opening
        self._unreachable = unreachable
        self._deltas: Iterator[ChatDelta] = iter(())
        self.usage: Usage | None = None

    def __enter__(self) -> Self:
        try:
            response = self._opening.__enter__()
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        try:
            if response.is_error:
                response.read()
            _check_status(response)
        except BaseException:
            self._opening.__exit__(None, None, None)
            raise
        self._deltas = self._read(response)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opening.__exit__(kind, error, trace)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ChatDelta:
        return next(self._deltas)

    def _read(self, response: httpx.Response) -> Iterator[ChatDelta]:
        for event in _events(response):
            if event.data == DONE:
                return
            if event.name == "error" or event.data.startswith('{"error"'):
                raise StreamError(_parse(FaultBody, event.data).error.message)
            chunk = _parse(Chunk, event.data)
            self.usage = chunk.usage or self.usage
            for choice in chunk.choices:
                text = choice.delta.content or ""
                if text or choice.finish_reason or chunk.lanes:
                    yield ChatDelta(
                        index=choice.index, text=text, finish_reason=choice.finish_reason, lanes=chunk.lanes
                    )
        raise StreamError("the stream broke off before its end")


def _events(response: httpx.Response) -> Iterator[Event]:
    decoder = EventDecoder()
    try:
        for data in response.iter_bytes():
            yield from decoder.feed(data)
    except httpx.TransportError as error:
        raise StreamError(f"the connection broke off: {error}") from None


def _parse(kind: type[Parsed], text: str) -> Parsed:
    try:
        return kind.model_validate_json(text)
    except ValidationError:
        raise StreamError(f"the server sent no {kind.__name__}: {text[:80]!r}") from None


def _check_status(response: httpx.Response) -> None:
    if response.is_success:
        return
    try:
        fault = FaultBody.model_validate_json(response.text).error
    except ValidationError:  # a proxy's page, say
        fault = Fault(message=response.reason_phrase or "refused")
    retry_after = response.headers.get("retry-after", "")
    raise StatusError(
        response.status_code,
        fault.message,
        param=fault.param,
        code=fault.code,
        retry_after_s=float(retry_after) if retry_after.isdigit() else None,
    )
