"""The progress of a start: a bar in a terminal, if rich is installed, else lines of the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TextIO

Report = Callable[[str, int, int], None]


@contextmanager
def progress_of(terminal: TextIO) -> Iterator[Report]:
    """A function that is called with what is done, how much of it, and of how much, from one thread."""
    if terminal.isatty() and find_spec("rich") is not None:
        with _bars(terminal) as report:
            yield report
    else:
        yield _LogLines()


class _LogLines:
    """One line for each thing that is done, with its seconds."""

    def __init__(self) -> None:
        self._what, self._began = "", 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.perf_counter()
        if what != self._what:
            self._what, self._began = what, now
        if done == total:
            logging.getLogger(__name__).info("%s: %d in %.1f s", what, total, now - self._began)


@contextmanager
def _bars(terminal: TextIO) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(file=terminal)) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done)

        yield report
