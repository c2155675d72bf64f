"""Reads a stream for both clients: deltas of bytes, and how it ended, once and for all."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx

from .core import SHOWN_CHARS, parse
from .errors import ClientError, Closed, StreamError, UnexpectedReply
from .sse import Event, EventDecoder
from .types import Chunk, Delta, Told, Usage

DONE = "[DONE]"
EVENTS = re.compile(rb"(\xef\xbb\xbf)?\s*(data|event|id|retry|)(:|$)")  # how a stream of events begins


class StreamReader:
    """Makes deltas of a stream's bytes, wherever they are cut. `usage` is the last that was told."""

    def __init__(self) -> None:
        self._decoder = EventDecoder()
        self._start = b""
        self._error: ClientError | None = None
        self.done = False
        self.usage: Usage | None = None

    def feed(self, data: bytes) -> Iterator[Delta]:
        """Lazily: deltas that precede an error come before it is raised."""
        self._start += data[: SHOWN_CHARS - len(self._start)]
        for event in self._decoder.feed(data):
            yield from self._deltas(event)
            if self.done:
                return

    def end(self) -> None:
        """To be called when no bytes are left. Raises `StreamError` if the answer is not whole, and `UnexpectedReply`
        if there never was a stream."""
        if not self.done:  # its last line may have come, but not the empty one behind it
            self.done = any(event.data.strip() == DONE for event in self._decoder.feed(b"\n\n"))
        if not (self.done or EVENTS.match(self._start)):
            start = self._start.decode("utf-8", errors="replace")
            raise UnexpectedReply(f"the server sent no stream: {start!r}")
        if not self.done:
            raise StreamError("the stream broke off before its end")

    def close(self) -> None:
        """To be called when nothing more will be read: later reads are told so, except behind the end."""
        if not self.done:
            self._keep(Closed("this stream was closed before its end"))

    def _keep(self, error: ClientError) -> ClientError:
        """The first error is the one that counts: a read that `close` cut short has no other fault."""
        self._error = self._error or error
        return self._error

    @contextmanager
    def lasting(self) -> Iterator[None]:
        """Around each read. What ended a stream before its end is raised by every later read, too: one that broke off
        never reads as whole."""
        if self._error is not None:
            raise self._error
        try:
            yield
        except ClientError as error:
            raise self._keep(error) from None
        except (StopIteration, StopAsyncIteration):
            raise
        except BaseException as error:
            self._keep(StreamError(f"an earlier read of this stream failed ({type(error).__name__})"))
            raise

    def _deltas(self, event: Event) -> Iterator[Delta]:
        data = event.data.strip()
        if event.name == "error":
            raise _failure(data)
        if data == DONE:
            self.done = True
            return
        if not data:
            return
        try:
            chunk = parse(Chunk, data, StreamError)
        except StreamError:
            if event.name == "message":
                raise
            return  # an event with a name of its own that is no JSON: a sign of life
        if chunk.error is not None or not chunk.known:
            if event.name == "message" or chunk.fault is not None:
                raise _failure(data)
            return
        self.usage = chunk.usage or self.usage
        for choice in chunk.choices or ():
            if choice.text or choice.reasoning or choice.finish_reason or choice.logprobs or chunk.lanes:
                yield Delta(**dict(choice), lanes=chunk.lanes)


def _failure(data: str) -> StreamError:
    """What an event that is no chunk says went wrong; if it does not say so in a form that is known, its start."""
    with suppress(UnexpectedReply):
        fault = parse(Told, data).fault
        if fault is not None and fault.message:
            return StreamError(fault.message, code=fault.code)
    return StreamError(f"the server failed within its answer, and sent {data[:SHOWN_CHARS]!r}")


def wake(response: httpx.Response) -> None:
    """Ends the read of another thread, which closing a socket does not."""
    stream = response.extensions.get("network_stream")
    connection = None if stream is None or response.is_closed else stream.get_extra_info("socket")
    if connection is not None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
