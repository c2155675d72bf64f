"""Processes that tests start: each heeds signals as one of a terminal does, and none outlives its test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .warm import Forked

ASYNCLANE = [sys.executable, "-P", "-m", "asynclane.server"]

# A process inherits what its parent ignores and blocks: under `nohup`, and after `&` in a script, that is SIGINT.
HEEDING = """
import os, signal, sys
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, [])
os.execvp(sys.argv[1], sys.argv[1:])
"""

# Variables of a machine that change what the command does, how Python writes, or where requests to this machine go.
CHANGING = re.compile("ASYNCLANE_|OTEL_|PYTHON(?!PATH|HOME)|NO_COLOR|.*_PROXY$", re.IGNORECASE)


def environment(**given: str) -> dict[str, str]:
    """That of this process without what would change a test, and with what is `given`."""
    return {name: value for name, value in os.environ.items() if not CHANGING.match(name)} | given


def heeding(command: Sequence[str]) -> list[str]:
    """The command, started so that no signal is ignored or blocked."""
    return [sys.executable, "-I", "-S", "-c", HEEDING, *command]


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Whoever calls it has to `end` it. `options` are those of `Popen`."""
    return subprocess.Popen(heeding(command), text=True, **{"env": environment(), **options})


def end(process: subprocess.Popen[str] | Forked) -> None:
    """Kills it if it still runs, and closes its pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(BrokenPipeError):  # what nobody has read
                pipe.close()


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the block, however the block ends."""
    process = start(command, **options)
    try:
        yield process
    finally:
        end(process)
