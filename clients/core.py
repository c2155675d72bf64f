"""The decisions of both clients: options, retries, and the errors in replies. Nothing here waits or sends."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from threading import TIMEOUT_MAX
from typing import Any, TypeVar

import httpx
from pydantic import ValidationError

from .errors import ClientError, Closed, ConnectionFailed, StatusError, StreamError, TimedOut, UnexpectedReply
from .types import ErrorBody, Fault, Reply

T = TypeVar("T", bound=Reply)

SHOWN_CHARS = 200  # of an invalid reply
MOST_DOUBLINGS = 64  # of a wait: longer than any `longest_s`, and more would overflow
SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")
# A queue may be long, so reading has no limit; connecting does.
TIMEOUT = httpx.Timeout(None, connect=10.0)


@dataclass(frozen=True, slots=True)
class Retry:
    """The policy for sending a refused request again. Only responses with one of `statuses` are retried, so never a
    stream that has begun.

    The n-th wait is the server's Retry-After and a random time between 0 and `first_s` times 2^n, at most `longest_s`:
    clients that are refused together do not return together. A Retry-After above `patience_s` is not waited for.
    `clock` (Unix time) and `draw` (from 0 to 1) are for tests.
    """

    times: int = 2
    first_s: float = 0.5
    longest_s: float = 8.0
    patience_s: float = 60.0
    statuses: frozenset[int] = frozenset({429, 503})
    clock: Callable[[], float] = time.time
    draw: Callable[[], float] = random.random

    def wait_after(self, response: httpx.Response, retries: int) -> float:
        """Return the seconds to wait after a refusal whose body has been read. Raises it if there is no next time."""
        error = refusal(response, self.clock)
        requested_s = error.retry_after_s or 0.0
        if retries >= self.times or error.status not in self.statuses or requested_s > self.patience_s:
            raise error
        return requested_s + self.draw() * min(self.longest_s, self.first_s * 2.0 ** min(retries, MOST_DOUBLINGS))


NEVER = Retry(times=0)


def http_options(base_url: str, api_key: str | None, timeout: httpx.Timeout | float | None) -> dict[str, Any]:
    """Return the options of either client of httpx. `base_url` may end with /v1, and its name and password are never
    shown. Raises `ValueError` for an invalid URL, key or limit."""
    url = _server_url(base_url)
    if not ((api_key or "").isascii() and (api_key or "").isprintable()):
        raise ValueError("this API key cannot be sent: a key has printable ASCII characters only")
    limits = httpx.Timeout(timeout)
    if not all(limit is None or 0 < limit <= TIMEOUT_MAX for limit in limits.as_dict().values()):
        raise ValueError(f"a time limit is a number of seconds above 0, or None for no limit, not {timeout!r}")
    return {
        "base_url": url.copy_with(userinfo=b""),
        "auth": (url.username, url.password) if url.userinfo else None,
        "headers": {"authorization": f"Bearer {api_key}"} if api_key else {},
        "timeout": limits,
        # The caller decides how many requests run at once; httpx would silently let the 101st wait.
        "limits": httpx.Limits(max_connections=None),
    }


def _server_url(text: str) -> httpx.URL:
    with suppress(httpx.InvalidURL, UnicodeError):
        url = httpx.URL(text.rstrip("/").removesuffix("/v1").rstrip("/"))
        if url.scheme in ("http", "https") and url.host and (url.port or 0) < 2**16 and not (url.query or url.fragment):
            return url
    # Without the part before an @, which may be a password, and without httpx's reason, which may quote it.
    raise ValueError(f"{text.rpartition('@')[2]!r} is no URL of a server: one reads http://HOST:PORT")


@contextmanager
def network_errors(http: httpx.Client | httpx.AsyncClient) -> Iterator[None]:
    """Turn httpx's errors into this package's. Raises `Closed` for a closed client."""
    if http.is_closed:
        raise Closed("this client is closed: it cannot be used after its `close`")
    try:
        yield
    except httpx.TimeoutException as error:
        raise TimedOut(f"{http.base_url} did not answer in time ({type(error).__name__})") from None
    except httpx.ConnectError as error:
        raise ConnectionFailed(
            f"no server at {http.base_url} ({error}): start one with `asynclane serve`, or give its address with --url"
        ) from None
    except httpx.RequestError as error:
        raise ConnectionFailed(f"the connection to {http.base_url} failed: {error}") from None


@contextmanager
def stream_errors() -> Iterator[None]:
    try:
        yield
    except httpx.TimeoutException:
        raise TimedOut("the server fell silent within its answer") from None
    except httpx.RequestError as error:
        raise StreamError(f"the connection broke off: {error}") from None


def parse(kind: type[T], text: str | bytes, error: type[ClientError] = UnexpectedReply) -> T:
    """Parse JSON in any encoding of Unicode, with or without a byte order mark. Raises `error` if it is no `kind`."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), errors="replace")
    try:
        return kind.model_validate_json(text)
    except ValidationError:
        raise error(f"the server sent no {kind.__name__}: {text[:SHOWN_CHARS]!r}") from None


def refusal(response: httpx.Response, clock: Callable[[], float]) -> StatusError:
    """Return the error in a response whose body has been read."""
    try:
        fault = parse(ErrorBody, response.content).fault or Fault()
    except UnexpectedReply:  # a proxy's page, for example
        fault = Fault()
    reason = fault.message or response.reason_phrase or "refused"
    location = response.headers.get("location") if response.is_redirect else None
    return StatusError(
        response.status_code,
        f"{reason}: the server is at {location}" if location else reason,
        param=fault.param,
        code=fault.code,
        retry_after_s=_retry_after_s(response.headers.get("retry-after", ""), clock),
        request_id=response.headers.get("x-request-id"),
    )


def _retry_after_s(header: str, clock: Callable[[], float]) -> float | None:
    """Parse seconds or a date (RFC 9110, 10.2.3); any other header is ignored."""
    if SECONDS.fullmatch(header):
        return float(header)
    try:
        date = parsedate_to_datetime(header)
        return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - clock())
    except (ValueError, OverflowError):
        return None
