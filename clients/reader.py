"""Streams of both clients: events from bytes that may be cut anywhere, deltas from events, and the end."""

from __future__ import annotations

import re
import socket
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import httpx

from .core import SHOWN_CHARS, parse
from .errors import ClientError, Closed, StreamError, UnexpectedReply
from .types import Chunk, Delta, ErrorBody, Usage

DONE = "[DONE]"
EVENTS = re.compile(rb"(\xef\xbb\xbf)?\s*(data|event|id|retry|)(:|$)")  # the start of a stream of events
MOST_BYTES = 16 * 2**20  # of one event: no event of a language model is longer


@dataclass(frozen=True, slots=True)
class Event:
    data: str
    name: str = "message"


class EventDecoder:
    """A decoder of server-sent events. An event that the end of the stream cuts off is dropped.

    `feed` raises `StreamError` for an event of more than `MOST_BYTES`, so memory is bounded.
    """

    def __init__(self) -> None:
        self._pending = bytearray()  # grows in place: a line in many pieces is joined in linear time
        self._after_cr = False
        self._first = True
        self._name = ""
        self._data: list[str] = []
        self._data_bytes = 0

    def feed(self, data: bytes) -> list[Event]:
        events = [event for line in self._lines(data) if (event := self._take(line)) is not None]
        if self._data_bytes + len(self._pending) > MOST_BYTES:
            raise StreamError(f"the server sent an event of more than {MOST_BYTES} bytes")
        return events

    def _lines(self, data: bytes) -> Iterator[bytes]:
        """Yield lines, which end with CR LF, LF or CR. A CR ends its line at once; an LF right after it is dropped."""
        if not data:
            return  # an empty piece must not change `_after_cr`
        if self._after_cr:
            data = data.removeprefix(b"\n")
        self._after_cr = data.endswith(b"\r")
        first, *lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._pending += first
        for line in lines:
            yield bytes(self._pending)
            self._pending = bytearray(line)

    def _take(self, line: bytes) -> Event | None:
        """Add a whole line, in which no character is cut. An empty line ends the event."""
        if self._first:
            line, self._first = line.removeprefix(BOM_UTF8), False
        if not line:
            data, name = self._data, self._name or "message"
            self._data, self._name, self._data_bytes = [], "", 0
            return Event("\n".join(data), name) if data else None
        field, _, value = line.decode("utf-8", errors="replace").partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data_bytes += len(line)
            self._data.append(value)
        elif field == "event":
            self._name = value
        return None  # comments have an empty field; `id` and `retry` are for clients that reconnect


class StreamReader:
    """The deltas of a stream and the error that ended it. `usage` is the last that the server sent."""

    def __init__(self) -> None:
        self._decoder = EventDecoder()
        self._start = b""
        self._error: ClientError | None = None
        self.done = False
        self.usage: Usage | None = None

    def feed(self, data: bytes) -> Iterator[Delta]:
        """Yield the deltas of some bytes. Deltas that precede an error come before it is raised."""
        self._start += data[: SHOWN_CHARS - len(self._start)]
        for event in self._decoder.feed(data):
            yield from self._deltas(event)
            if self.done:
                return

    def end(self) -> None:
        """Check the end when no bytes are left. Raises `StreamError` if the answer is not whole, and `UnexpectedReply`
        if this never was a stream."""
        if not self.done:  # the last line may be there without the empty line after it
            self.done = any(event.data.strip() == DONE for event in self._decoder.feed(b"\n\n"))
        if not (self.done or EVENTS.match(self._start)):
            start = self._start.decode("utf-8", errors="replace")
            raise UnexpectedReply(f"the server sent no stream: {start!r}")
        if not self.done:
            raise StreamError("the stream broke off before its end")

    def close(self) -> None:
        """Make later reads raise `Closed`, unless the stream has ended."""
        if not self.done:
            self._error = self._error or Closed("this stream was closed before its end")

    @contextmanager
    def lasting_errors(self) -> Iterator[None]:
        """Raise the error that ended the stream in every later read: a broken stream never reads as whole."""
        if (earlier := self._error) is not None:
            raise earlier
        try:
            yield
        except ClientError as error:
            self._error = self._error or error  # the first counts: a read that `close` cut short has no other fault
            raise self._error from None
        except (StopIteration, StopAsyncIteration):
            raise
        except BaseException as error:
            self._error = self._error or StreamError(f"an earlier read of this stream failed: {error!r}")
            raise

    def _deltas(self, event: Event) -> Iterator[Delta]:
        data = event.data.strip()
        if event.name == "error":
            raise _failure(data)
        self.done = data == DONE
        if self.done or not data:
            return
        try:
            chunk = parse(Chunk, data, StreamError)
        except StreamError:
            if event.name == "message":
                raise
            return  # an event with a name of its own and no JSON: a sign of life
        if chunk.error is not None or not chunk.known:
            if event.name == "message" or chunk.fault is not None:
                raise _failure(data)
            return
        self.usage = chunk.usage or self.usage
        for choice in chunk.choices or ():
            added = choice.text or choice.reasoning or choice.tool_calls or chunk.diffusing
            if added or choice.finish_reason or choice.logprobs or chunk.lanes:
                yield Delta(**dict(choice), lanes=chunk.lanes, diffusing=bool(chunk.diffusing))


def _failure(data: str) -> StreamError:
    """Return the error in an event. If its form is unknown, quote the start of the event."""
    with suppress(UnexpectedReply):
        fault = parse(ErrorBody, data).fault
        if fault is not None and fault.message:
            return StreamError(fault.message, code=fault.code)
    return StreamError(f"the server failed within its answer, and sent {data[:SHOWN_CHARS]!r}")


def wake(response: httpx.Response) -> None:
    """End the read of another thread: closing a socket does not."""
    stream = response.extensions.get("network_stream")
    connection = None if stream is None or response.is_closed else stream.get_extra_info("socket")
    if connection is not None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
