"""Decides whether two formulas in LaTeX have the same value, by sympy in a process of its own with a time limit.

Needs sympy and antlr4-python3-runtime 4.11, the extra `eval`. `simplify` can take hours, and cannot be interrupted
otherwise. The process reads pairs as lines of JSON, and writes a line for each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from importlib.metadata import PackageNotFoundError, version
from selectors import EVENT_READ, DefaultSelector
from typing import Self

LIMIT_S = 5.0  # for a pair, as in lm-evaluation-harness
START_S = 60.0  # sympy is imported in a second, on a busy machine in more
ANTLR = "4.11."  # the version that sympy's grammar was made for


def available() -> bool:
    try:
        return bool(version("sympy")) and version("antlr4-python3-runtime").startswith(ANTLR)
    except PackageNotFoundError:
        return False


class Equivalence:
    """A context manager; its process starts with the first pair. Threads may share it. A pair has `limit_s` seconds."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.limit_s = limit_s
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def same(self, one: str, other: str) -> bool:
        """False, too, for what sympy cannot read, and for what takes longer than the limit."""
        with self._lock:
            if self._process is not None and self._process.poll() is not None:  # ended by others, as for its memory
                self._end()
            process = self._process or self._start()
            assert process.stdin is not None
            process.stdin.write(json.dumps([one, other]) + "\n")
            process.stdin.flush()
            found = _line(process, self.limit_s)
            if found is None:
                self._end()
            return found == "true"

    def _start(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [sys.executable, "-P", __file__]
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, bufsize=1
        )
        if _line(self._process, START_S) is None:
            self._end()
            raise OSError("sympy's process has not started: try again, or uninstall sympy to compare answers as text")
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _line(process: subprocess.Popen[str], limit_s: float) -> str | None:
    """The next line of a process that writes one for each request; None if it takes too long or has ended."""
    assert process.stdout is not None
    with DefaultSelector() as selector:
        selector.register(process.stdout, EVENT_READ)
        return process.stdout.readline().strip() or None if selector.select(limit_s) else None


def _same(one: str, other: str) -> bool:
    import sympy
    from sympy.parsing.latex import parse_latex

    return bool(sympy.simplify(parse_latex(one) - parse_latex(other)) == 0)


def _serve() -> None:
    import sympy.parsing.latex  # noqa: F401  # before the first limit

    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        try:
            found = _same(*json.loads(line))
        except Exception:  # noqa: BLE001  # sympy raises whatever it likes
            found = False
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
