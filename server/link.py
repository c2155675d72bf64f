"""Messages between two processes over a pair of sockets.

Each frame is its length and a list of messages in msgpack. A socket pair, not ZeroMQ: sending the messages of a step
takes 14 us of a processor instead of 60 to 80 with its thread (bench/LOG.md), the end of either process is the end of
the connection, which the other one sees at once, and no name in the file system could be opened by others.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

Sent = TypeVar("Sent")
Received = TypeVar("Received")

LENGTH = struct.Struct("=I")


class Link(asyncio.Protocol, Generic[Sent, Received]):
    """One end of a connection. `take` gets the messages of each frame; `lost` is called once the other end is gone."""

    def __init__(self, received: Any, take: Callable[[list[Received]], None], lost: Callable[[], None]) -> None:
        """`received` is the type of the messages that come, a union."""
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(list[received])
        self._take = take
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._unread = bytearray()
        self._outbox: list[msgspec.Raw] = []

    async def open(self, end: socket.socket) -> None:
        end.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: self, sock=end)

    def send(self, messages: Sequence[Sent | msgspec.Raw]) -> None:
        """Send one frame now. What cannot be sent any more is dropped: `lost` has been called, or is about to be."""
        if self._transport is not None and not self._transport.is_closing():
            frame = bytearray(LENGTH.size)
            self._encoder.encode_into(messages, frame, LENGTH.size)
            LENGTH.pack_into(frame, 0, len(frame) - LENGTH.size)
            self._transport.write(frame)

    def send_soon(self, messages: Sequence[Sent]) -> None:
        """Send messages with all others of this turn of the event loop, in one frame. Each is encoded now, so that one
        that cannot be is its sender's error, and the others go."""
        encoded = [msgspec.Raw(self._encoder.encode(message)) for message in messages]
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._send_outbox)
        self._outbox += encoded

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._unread += data
        start, size = 0, len(self._unread)
        while start + LENGTH.size <= size:
            begin = start + LENGTH.size
            end = begin + LENGTH.unpack_from(self._unread, start)[0]
            if end > size:
                break
            start = end
            with memoryview(self._unread) as view:
                messages = self._decoder.decode(view[begin:end])
            self._take(messages)
        del self._unread[:start]

    def connection_lost(self, error: Exception | None) -> None:
        self._lost()

    def _send_outbox(self) -> None:
        messages, self._outbox = self._outbox, []
        self.send(messages)


def send_frame(end: socket.socket, message: object) -> None:
    """Send one message before there is an event loop. Blocks."""
    data = msgspec.msgpack.encode(message)
    end.sendall(LENGTH.pack(len(data)) + data)


def receive_frame(end: socket.socket) -> bytes:
    """The first frame, before there is an event loop. Blocks. Raises `EOFError`."""
    return _receive(end, LENGTH.unpack(_receive(end, LENGTH.size))[0])


def _receive(end: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = end.recv(size - len(found))
        if not part:
            raise EOFError("the other process has ended")
        found += part
    return found
