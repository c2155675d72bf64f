"""Decodes server-sent events from bytes that may be cut anywhere, even within a character."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass

from .errors import StreamError

MOST_BYTES = 16 * 2**20  # of one event: what is longer is no event of a language model


@dataclass(frozen=True, slots=True)
class Event:
    data: str
    name: str = "message"


class EventDecoder:
    """Feed it bytes, take whole events. One that the end of the stream cuts off is none.

    `feed` raises `StreamError` for an event of more than `MOST_BYTES`: what a stream can make it hold is bounded.
    """

    def __init__(self) -> None:
        self._pending = bytearray()  # grows in place: a line in many pieces is joined in linear time
        self._after_cr = False
        self._first = True
        self._name = ""
        self._data: list[str] = []
        self._held = 0  # bytes of the event's data

    def feed(self, data: bytes) -> list[Event]:
        events = (self._take(line) for line in self._lines(data))
        whole = [event for event in events if event is not None]
        if self._held + len(self._pending) > MOST_BYTES:
            raise StreamError(f"the server sent an event of more than {MOST_BYTES} bytes")
        return whole

    def _lines(self, data: bytes) -> Iterator[bytes]:
        """Lines end with CR LF, LF or CR. A CR ends its line at once; an LF right behind it is part of it."""
        if not data:
            return  # nothing came: what was said of a CR still holds
        if self._after_cr:
            data = data.removeprefix(b"\n")
        self._after_cr = data.endswith(b"\r")
        first, *lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._pending += first
        for line in lines:
            yield bytes(self._pending)
            self._pending = bytearray(line)

    def _take(self, line: bytes) -> Event | None:
        """Bytes are decoded by whole lines: no character is cut."""
        if self._first:
            line, self._first = line.removeprefix(BOM_UTF8), False
        if not line:
            return self._dispatch()
        field, _, value = line.decode("utf-8", errors="replace").partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._held += len(line)
            self._data.append(value)
        elif field == "event":
            self._name = value
        return None  # comments have an empty field; `id` and `retry` are for clients that reconnect

    def _dispatch(self) -> Event | None:
        data, name = self._data, self._name or "message"
        self._data, self._name, self._held = [], "", 0
        return Event("\n".join(data), name) if data else None
