"""Decides what both clients send and do with what comes back: reads replies, tells errors, plans retries.

Nothing here waits or touches a network. `client` and `async_client` do, and decide nothing.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from threading import TIMEOUT_MAX
from typing import Any, TypeVar

import httpx
from pydantic import ValidationError

from .errors import ClientError, Closed, ConnectionFailed, StatusError, StreamError, TimedOut, UnexpectedReply
from .types import Fault, Reply, Told

T = TypeVar("T", bound=Reply)

SHOWN_CHARS = 200  # of a reply that is none
MOST_DOUBLINGS = 64  # of a wait: any longest one is behind, and more would overflow
SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")
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
        return asked + self.draw() * min(self.longest_s, self.first_s * 2.0 ** min(retries, MOST_DOUBLINGS))


NEVER = Retry(times=0)


def http_options(base_url: str, api_key: str | None, timeout: httpx.Timeout | float | None) -> dict[str, Any]:
    """For either client of httpx. `base_url` may end with /v1, as OpenAI's clients want it, or not, and may have a name
    and a password, which are never shown. Raises `ValueError` for what no request could be sent with."""
    url = _server_url(base_url)
    if not ((api_key or "").isascii() and (api_key or "").isprintable()):
        raise ValueError("an API key is of printable ASCII characters: this one cannot be sent")
    limits = httpx.Timeout(timeout)
    if not all(limit is None or 0 < limit <= TIMEOUT_MAX for limit in limits.as_dict().values()):
        raise ValueError(f"a time limit is a number of seconds above 0, or None for no limit, not {timeout!r}")
    return {
        "base_url": url.copy_with(userinfo=b""),
        "auth": (url.username, url.password) if url.userinfo else None,
        "headers": {"authorization": f"Bearer {api_key}"} if api_key else {},
        "timeout": limits,
        # How many requests run at once is the caller's business; httpx would let the 101st wait unseen.
        "limits": httpx.Limits(max_connections=None),
    }


def _server_url(text: str) -> httpx.URL:
    with suppress(httpx.InvalidURL, UnicodeError):
        url = httpx.URL(text.rstrip("/").removesuffix("/v1").rstrip("/"))
        if url.scheme in ("http", "https") and url.host and (url.port or 0) < 2**16 and not (url.query or url.fragment):
            return url
    # Without what precedes an @, which may be a password, and without httpx's reason, which may quote it.
    raise ValueError(f"{text.rpartition('@')[2]!r} is no URL of a server: one reads http://HOST:PORT")


def encoded(body: Mapping[str, Any]) -> bytes:
    """A body as JSON. Raises `ValueError` for what is none: NaN, half a surrogate pair, objects of other kinds."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"this cannot be sent as JSON: {error}") from None


@contextmanager
def told(http: httpx.Client | httpx.AsyncClient) -> Iterator[None]:
    """Errors of the network in this library's words."""
    if http.is_closed:
        raise Closed("this client is closed: what it is used for belongs before its `close`")
    base_url = http.base_url
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


def parse(kind: type[T], text: str | bytes, error: type[ClientError] = UnexpectedReply) -> T:
    """JSON is UTF-8; other encodings of Unicode, and a mark of it at the start, lose nothing."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), errors="replace")
    try:
        return kind.model_validate_json(text)
    except ValidationError:
        raise error(f"the server sent no {kind.__name__}: {text[:SHOWN_CHARS]!r}") from None


def refusal(response: httpx.Response, clock: Callable[[], float]) -> StatusError:
    """The error in a response whose body has been read."""
    try:
        fault = parse(Told, response.content).fault or Fault()
    except UnexpectedReply:  # a proxy's page, say
        fault = Fault()
    reason = fault.message or response.reason_phrase or "refused"
    elsewhere = response.headers.get("location") if response.is_redirect else None
    return StatusError(
        response.status_code,
        f"{reason}: the server is at {elsewhere}" if elsewhere else reason,
        param=fault.param,
        code=fault.code,
        retry_after_s=_retry_after_s(response.headers.get("retry-after", ""), clock),
        request_id=response.headers.get("x-request-id"),
    )


def _retry_after_s(header: str, clock: Callable[[], float]) -> float | None:
    """Seconds, or a date (RFC 9110, 10.2.3). A header that is neither says nothing."""
    if SECONDS.fullmatch(header):
        return float(header)
    try:
        date = parsedate_to_datetime(header)
        return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - clock())
    except (ValueError, OverflowError):
        return None
