"""Decides whether an answer is right, for each kind of problem by one small rule that never raises."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from .sandbox import outcomes

NUMBER = re.compile(r"####\s*(-?\d+)")
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)


class Check(Protocol):
    """What a right answer must hold. `accepts` never raises, whatever the text."""

    @property
    def expected(self) -> object: ...

    def accepts(self, text: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Result:
    """The first number after `####`, whatever else the answer says."""

    expected: int

    def accepts(self, text: str) -> bool:
        return _numbers(text)[:1] == (self.expected,)


@dataclass(frozen=True, slots=True)
class Results:
    """All numbers after `####`, in order."""

    expected: tuple[int, ...]

    def accepts(self, text: str) -> bool:
        return _numbers(text) == self.expected


@dataclass(frozen=True, slots=True)
class Calls:
    """The first fenced Python block must give these values, `(call, repr of its value)`."""

    expected: tuple[tuple[str, str], ...]

    def accepts(self, text: str) -> bool:
        block = CODE.search(text)
        calls = [call for call, _ in self.expected]
        return block is not None and outcomes(block[1], calls) == [value for _, value in self.expected]


@dataclass(frozen=True, slots=True)
class Exactly:
    """The text itself, but for space around it."""

    expected: str

    def accepts(self, text: str) -> bool:
        return text.strip() == self.expected


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(digits) for digits in NUMBER.findall(text))
    except ValueError:  # thousands of digits: no answer of ours
        return ()
