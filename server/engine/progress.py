"""The progress of a start: a bar in a terminal, else lines of the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from tqdm import tqdm

Report = Callable[[str, int, int], None]

QUICK_S = 0.5  # what takes no longer has no bar
LINE_S = 5.0  # between two lines about one thing


@contextmanager
def progress_of(terminal: TextIO) -> Iterator[Report]:
    """A function that is called with what is done, how much of it, and of how much, from one thread at a time."""
    if not terminal.isatty():
        yield _LogLines()
        return
    bars = _Bars(terminal)
    try:
        yield bars
    finally:
        bars.close()


class _LogLines:
    """A line for each thing that is done, with its seconds, and some on the way if it takes long."""

    def __init__(self) -> None:
        self._what, self._began, self._shown = "", 0.0, 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.perf_counter()
        if what != self._what:
            self._what, self._began, self._shown = what, now, now
        if done == total:
            logging.getLogger(__name__).info("%s: %d in %.1f s", what, total, now - self._began)
        elif now >= self._shown + LINE_S:
            self._shown = now
            logging.getLogger(__name__).info("%s: %d of %d", what, done, total)


class _Bars:
    """A bar for each thing, one below the other."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._what = ""
        self._bar: tqdm[Any] | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._bar is None or what != self._what:
            self.close()
            self._what = what
            self._bar = tqdm(total=total, desc=what, file=self._terminal, delay=QUICK_S, dynamic_ncols=True)
        self._bar.update(done - self._bar.n)
        if done == total:
            self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = None
