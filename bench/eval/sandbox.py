"""Runs code that a model wrote in a process of its own, so that it does no harm by accident.

The process is this file alone, without the project. It has few builtins and modules, seconds of processor time and
little memory, and can neither write files nor start processes. That stops endless loops, memory blow-ups and stray
imports. It does not stop malicious code: nothing in Python does. A run takes about 25 ms.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import resource
import subprocess
import sys
from collections.abc import Sequence

LIMITS = {
    resource.RLIMIT_AS: 512 * 2**20,  # bytes
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NPROC: 0,
    resource.RLIMIT_CORE: 0,
}
WALL_S = 10.0

# Those that the reference solutions of HumanEval and MBPP import, and others that only compute.
MODULES = """
abc array bisect calendar cmath collections copy dataclasses datetime decimal enum fractions functools
hashlib heapq itertools math numbers operator queue random re statistics string sys time typing
""".split()
BUILTINS = """
Ellipsis NotImplemented __build_class__ abs all any ascii bin bool bytearray bytes callable chr classmethod
complex delattr dict dir divmod enumerate eval exec filter float format frozenset getattr globals hasattr
hash hex id int isinstance issubclass iter len list locals map max memoryview min next object oct ord pow
property range repr reversed round set setattr slice sorted staticmethod str sum super tuple type vars zip
ArithmeticError AssertionError AttributeError BaseException EOFError Exception FloatingPointError ImportError
IndexError KeyError LookupError MemoryError ModuleNotFoundError NameError NotImplementedError OSError
OverflowError RecursionError RuntimeError StopIteration SyntaxError SystemExit TimeoutError TypeError
UnicodeError ValueError Warning ZeroDivisionError
"""


def outcomes(code: str, calls: Sequence[str], limit_s: int = 1) -> list[str] | None:
    """Return the `repr` of each call's value after `code` has run; None if anything failed or took more than `limit_s`
    seconds of a processor."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", __file__],
            input=json.dumps({"code": code, "calls": list(calls), "limit_s": limit_s}),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            timeout=WALL_S * limit_s,
            check=True,
        )
        return [str(value) for value in json.loads(done.stdout)]
    except (subprocess.SubprocessError, OSError, ValueError, TypeError):
        return None


def passes(program: str, limit_s: int) -> bool:
    """Return whether a program runs to its end without an error in that time."""
    return outcomes(program, [], limit_s) is not None


def _import(name: str, *rest: object) -> object:
    if name not in MODULES:
        raise ImportError(f"{name} is not for answers")
    return __import__(name, *rest)  # type: ignore[arg-type]


def _run(code: str, calls: Sequence[str]) -> list[str]:
    names = {name: getattr(builtins, name) for name in BUILTINS.split()}
    allowed = {**names, "__import__": _import, "print": lambda *values, **options: None}
    scope: dict[str, object] = {"__builtins__": allowed, "__name__": "answer"}
    with contextlib.redirect_stdout(io.StringIO()):  # the real one is for the outcomes
        exec(code, scope)
    return [repr(eval(call, scope)) for call in calls]


def _limit(limit_s: int) -> None:
    for kind, most in {**LIMITS, resource.RLIMIT_CPU: limit_s}.items():
        with contextlib.suppress(OSError, ValueError):  # a system may lack a limit, or have a lower one
            resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    given = json.loads(sys.stdin.read())
    _limit(given["limit_s"])
    sys.stdout.write(json.dumps(_run(given["code"], given["calls"])))
