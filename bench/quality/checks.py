"""Decides whether an answer is right: one small rule for each task."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..eval.sandbox import outcomes
from ..load.problems import Problem

NUMBER = re.compile(r"####\s*(-?\d+)")
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def right(problem: Problem, text: str) -> bool:
    """Return whether `text` answers `problem`. Never raises; `sandbox` runs the code in the text."""
    return CHECKS[problem.task](problem.expected, text)


def first_result(expected: int, text: str) -> bool:
    """The first number after `####`, whatever else the answer says."""
    return _numbers(text)[:1] == (expected,)


def all_results(expected: tuple[int, ...], text: str) -> bool:
    """All numbers after `####`, in order."""
    return _numbers(text) == expected


def calls(expected: Sequence[tuple[str, str]], text: str) -> bool:
    """The first fenced Python block gives these values, `(call, repr of its value)`."""
    block = CODE.search(text)
    return block is not None and outcomes(block[1], [call for call, _ in expected]) == [value for _, value in expected]


def exactly(expected: str, text: str) -> bool:
    """The text itself, without the space around it."""
    return text.strip() == expected


CHECKS: Mapping[str, Callable[[Any, str], bool]] = {
    "math": first_result,
    "multi": all_results,
    "code": calls,
    "list": exactly,
}


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(digits) for digits in NUMBER.findall(text))
    except ValueError:  # thousands of digits: no answer of ours
        return ()
