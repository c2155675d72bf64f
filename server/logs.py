"""The server's log. A thread of its own writes it, so that a full disk or a pipe without a reader stops nothing else:
what does not fit into the queue is dropped and counted."""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

STDERR = 2  # not `sys.stderr`, whose lock a blocked thread would keep, so that the interpreter could not end
QUEUE_LINES = 10_000
LINE_CHARS = 20_000
FLUSH_S = 2.0  # at the end, for the lines that wait
REPEAT_S = 1.0
KINDS = 1000

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="-")
TRACE: ContextVar[Mapping[str, str]] = ContextVar("trace", default={})  # noqa: B039 - `trace_id` and `span_id`, read only


@contextmanager
def logging_to(descriptor: int, level: str, form: str) -> Iterator[None]:
    """Log to a file descriptor until the block ends. `form` is text or json."""
    root = logging.getLogger()
    handler, before = QueuedHandler(descriptor), root.level
    handler.setFormatter(FORMATS[form]())
    handler.addFilter(Repeats())
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.setLevel(before)
        root.removeHandler(handler)
        handler.close()


def name_process(name: str) -> None:
    """Let each further line of this process have its name, for those who read lines of several."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, JsonFormat):
            handler.formatter.process = name


def lines_dropped() -> int:
    """Lines that this process did not log, since it logs to a queue."""
    return sum(handler.dropped for handler in logging.getLogger().handlers if isinstance(handler, QueuedHandler))


class QueuedHandler(logging.Handler):
    """Never waits for whoever reads the log. `dropped` counts the lines that found no room or could not be written."""

    def __init__(self, descriptor: int, queue_lines: int = QUEUE_LINES) -> None:
        super().__init__()
        self.dropped = 0
        self._descriptor = descriptor
        self._lines: queue.Queue[str | None] = queue.Queue(queue_lines)
        self._writer = threading.Thread(target=self._write_lines, name="log", daemon=True)
        self._writer.start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._lines.full():  # before the line is formatted, which takes time
            self.dropped += 1
            return
        try:
            self._lines.put_nowait(self.format(record))
        except Exception:  # noqa: BLE001 - a line that cannot be formatted must not end a request
            self.dropped += 1

    def close(self) -> None:
        if self._writer.is_alive():
            try:
                self._lines.put_nowait(None)
            except queue.Full:
                self._lines.get_nowait()
                self._lines.put_nowait(None)
            self._writer.join(FLUSH_S)
        super().close()

    def _write_lines(self) -> None:
        reported, reported_at = 0, 0.0
        while (line := self._lines.get()) is not None:
            if not self._write(line):
                with self.lock:  # type: ignore[union-attr] # `Handler.__init__` has made it
                    self.dropped += 1
            dropped, now = self.dropped, time.monotonic()
            if dropped > reported and (self._lines.empty() or now > reported_at + REPEAT_S):
                fields = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING"}
                message = f"{dropped - reported} log lines were dropped"
                if self._write(self.format(logging.makeLogRecord({**fields, "msg": message}))):
                    reported, reported_at = dropped, now

    def _write(self, line: str) -> bool:
        rest = f"{line}\n".encode(errors="backslashreplace")
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            return False
        return True


class Repeats(logging.Filter):
    """Passes one warning or error of a kind in a second, with the number of those `left_out` since the last one. Most
    are caused by clients, who could fill a disk with them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._next_at: dict[object, float] = {}
        self._left_out = Counter[object]()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        kind = (record.name, record.msg, record.exc_info and record.exc_info[0])
        now = self._clock()
        if now < self._next_at.get(kind, 0.0):
            self._left_out[kind] += 1
            return False
        if len(self._next_at) >= KINDS:
            self._next_at.clear()
            self._left_out.clear()
        self._next_at[kind] = now + REPEAT_S
        record.left_out = self._left_out.pop(kind, 0)
        return True


class JsonFormat(logging.Formatter):
    """One JSON object in ASCII, with the ids of the request and its trace, and the record's `fields`."""

    process = ""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self.entry(record), default=str)

    def entry(self, record: logging.LogRecord) -> dict[str, Any]:
        left_out = getattr(record, "left_out", 0)
        more = f" ({left_out} more were left out)" if left_out else ""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            **({"process": self.process} if self.process else {}),
            "logger": record.name,
            "request_id": REQUEST_ID.get(),
            **TRACE.get(),
            "message": record.getMessage().strip()[:LINE_CHARS] + more,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)[-LINE_CHARS:]
        return entry


class TextFormat(JsonFormat):
    """Time, level, the process if it has a name, logger, request id, message, ids of the trace and fields. Only a line
    of a traceback begins with a space."""

    def format(self, record: logging.LogRecord) -> str:
        entry = self.entry(record)
        head = " ".join(
            _escaped(str(entry.pop(name))) for name in ("time", "level", "process", "logger") if name in entry
        )
        request_id, message = _quoted(entry.pop("request_id")), _escaped(entry.pop("message"))
        traceback = entry.pop("traceback", "")
        fields = "".join(f" {name}={_quoted(str(value))}" for name, value in entry.items())
        return "\n    ".join([f"{head} {request_id} {message}{fields}", *map(_escaped, traceback.splitlines())])


FORMATS = {"text": TextFormat, "json": JsonFormat}


def _escaped(text: str) -> str:
    """The text without characters that end a line or move a cursor."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def _quoted(text: str) -> str:
    """The text as one word: what a client wrote cannot look like another field."""
    return json.dumps(text) if set(text) & set(' ="') or not text.isprintable() else text
