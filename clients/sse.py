"""Decodes server-sent events from bytes that may be cut anywhere, even within a character."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    data: str
    name: str = "message"


class EventDecoder:
    """Feed it bytes, take whole events. One that the end of the stream cuts off is none."""

    def __init__(self) -> None:
        self._pending = b""
        self._after_cr = False
        self._first = True
        self._name = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[Event]:
        events = (self._take(line) for line in self._lines(data))
        return [event for event in events if event is not None]

    def _lines(self, data: bytes) -> Iterator[str]:
        """Lines end with CR LF, LF or CR. A CR ends its line at once; an LF right behind it is part of it."""
        if not data:
            return  # nothing came: what was said of a CR still holds
        if self._after_cr:
            data = data.removeprefix(b"\n")
        self._after_cr = data.endswith(b"\r")
        *lines, self._pending = (self._pending + data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            # Bytes are decoded by whole lines: no character is cut.
            yield line.decode("utf-8", errors="replace")

    def _take(self, line: str) -> Event | None:
        if self._first:
            line, self._first = line.removeprefix("\ufeff"), False
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        return None  # comments have an empty field; `id` and `retry` are for clients that reconnect

    def _dispatch(self) -> Event | None:
        data, name = self._data, self._name or "message"
        self._data, self._name = [], ""
        return Event("\n".join(data), name) if data else None
