"""A question with its answer, and what a conversation can make of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Turn:
    """`short` is the answer in a word or two, `why` its reason, both empty where there is none. `follow` draws a next
    turn that only this one explains. `languages` has the answer in other languages, by their English names. A `fixed`
    answer has its own form, such as JSON, and no style changes it."""

    ask: str
    answer: str
    short: str = ""
    why: str = ""
    follow: Callable[[Random], Turn] | None = None
    languages: tuple[tuple[str, str], ...] = ()
    fixed: bool = False
    opened: int = 0  # characters of the answer that a grammar has written already
    tools: tuple[dict[str, object], ...] = ()


Draw = Callable[[Random], Turn]
