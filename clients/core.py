"""Decides what both clients do with what a server sends: reads replies and streams, tells errors, plans retries.

Nothing here waits or touches a network. `client` and `async_client` do, and decide nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx
from pydantic import ValidationError

from .errors import ClientError, ConnectionFailed, StatusError, StreamError, TimedOut, UnexpectedReply
from .sse import Event, EventDecoder
from .types import Chunk, Delta, Fault, FaultBody, Reply, Usage

T = TypeVar("T", bound=Reply)

DONE = "[DONE]"
SHOWN_CHARS = 80  # of a reply that is none
# A queue may be long, so reading has no limit; connecting does.
TIMEOUT = httpx.Timeout(None, connect=10.0)


@dataclass(frozen=True, slots=True)
class Retry:
    """When a refused request is sent again: only behind a status of `statuses`, so never once a stream has begun.

    The n-th wait is at random between 0 and `first_s` times 2^n, at most `longest_s`, so that clients refused together
    do not come back together. It is added to what the server's Retry-After asks for; a server that asks for more
    than `patience_s` is not waited for. `clock` (Unix time) and `draw` (from 0 to 1) are for tests.
    """

    times: int = 2
    first_s: float = 0.5
    longest_s: float = 8.0
    patience_s: float = 60.0
    statuses: frozenset[int] = frozenset({429, 503})
    clock: Callable[[], float] = time.time
    draw: Callable[[], float] = random.random

    def wait_s(self, error: StatusError, retries: int) -> float | None:
        """How long to wait before the next of them, `retries` having been made; None: give up."""
        asked = error.retry_after_s or 0.0
        if retries >= self.times or error.status not in self.statuses or asked > self.patience_s:
            return None
        return asked + self.draw() * min(self.longest_s, self.first_s * 2.0**retries)


NEVER = Retry(times=0)


def http_options(base_url: str, api_key: str | None, timeout: httpx.Timeout | float | None) -> dict[str, Any]:
    """For either client of httpx. `base_url` may end with /v1, as OpenAI's clients want it, or not."""
    return {
        "base_url": base_url.rstrip("/").removesuffix("/v1"),
        "headers": {"authorization": f"Bearer {api_key}"} if api_key else {},
        "timeout": timeout,
        # How many requests run at once is the caller's business; httpx would let the 101st wait unseen.
        "limits": httpx.Limits(max_connections=None),
    }


@contextmanager
def told(base_url: httpx.URL) -> Iterator[None]:
    """Errors of the network in this library's words."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise TimedOut(f"{base_url} did not answer in time ({type(error).__name__})") from None
    except httpx.ConnectError as error:
        raise ConnectionFailed(
            f"no server at {base_url} ({error}): start one with `asynclane serve`, or say where it is"
        ) from None
    except httpx.RequestError as error:
        raise ConnectionFailed(f"the connection to {base_url} failed: {error}") from None


@contextmanager
def told_within_stream() -> Iterator[None]:
    try:
        yield
    except httpx.TimeoutException:
        raise TimedOut("the server fell silent within its answer") from None
    except httpx.RequestError as error:
        raise StreamError(f"the connection broke off: {error}") from None


def parse(kind: type[T], text: str, error: type[ClientError] = UnexpectedReply) -> T:
    try:
        return kind.model_validate_json(text)
    except ValidationError:
        raise error(f"the server sent no {kind.__name__}: {text[:SHOWN_CHARS]!r}") from None


def refusal(response: httpx.Response, clock: Callable[[], float]) -> StatusError:
    """The error in a response whose body has been read."""
    try:
        fault = FaultBody.model_validate_json(response.content).error
    except ValidationError:  # a proxy's page, say
        fault = Fault(message=response.reason_phrase or "refused")
    return StatusError(
        response.status_code,
        fault.message,
        param=fault.param,
        code=fault.code,
        retry_after_s=_retry_after_s(response.headers.get("retry-after", ""), clock),
        request_id=response.headers.get("x-request-id"),
    )


def _retry_after_s(header: str, clock: Callable[[], float]) -> float | None:
    """Seconds, or a date (RFC 9110, 10.2.3). A header that is neither says nothing."""
    if header.isascii() and header.isdigit():
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - clock())
    except ValueError:
        return None


class StreamReader:
    """Makes deltas of a stream's bytes, wherever they are cut. `usage` is the last that was told."""

    def __init__(self) -> None:
        self._decoder = EventDecoder()
        self.done = False
        self.usage: Usage | None = None

    def feed(self, data: bytes) -> Iterator[Delta]:
        """Lazily: deltas that precede an error come before it is raised."""
        for event in self._decoder.feed(data):
            if event.data == DONE:
                self.done = True
                return
            yield from self._deltas(event)

    def end(self) -> None:
        """To be called when no bytes are left. Raises `StreamError` if the answer is not whole."""
        if not self.done:
            raise StreamError("the stream broke off before its end")

    def _deltas(self, event: Event) -> Iterator[Delta]:
        if event.name == "error" or event.data.startswith('{"error"'):
            fault = parse(FaultBody, event.data, StreamError).error
            raise StreamError(fault.message, code=fault.code)
        chunk = parse(Chunk, event.data, StreamError)
        self.usage = chunk.usage or self.usage
        for choice in chunk.choices:
            if choice.text or choice.finish_reason or choice.logprobs or chunk.lanes:
                yield Delta(**dict(choice), lanes=chunk.lanes)
