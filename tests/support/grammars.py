"""Grammars of tests: those that the server makes of a request, for the embedded model, and a small one of our own."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from functools import cache

import numpy as np

from asynclane.scheduler.grammar_guide import Constraint
from asynclane.server.structured.grammar import GrammarConstraint, Grammars, Wanted
from asynclane.server.text.tokenizer import Tokenizer

from .driver import MODEL
from .fakes import END, IDS

ORDER = {
    "type": "object",
    "properties": {
        "item": {"enum": ["book", "egg"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "note": {"type": "string", "maxLength": 12},
    },
    "required": ["item", "count", "note"],
    "additionalProperties": False,
}


@cache
def _grammars() -> Grammars:
    return Grammars(Tokenizer(MODEL))


def constraints(wanted: Wanted) -> Callable[[], Constraint]:
    grammar = asyncio.run(_grammars().compile(wanted))
    return lambda: _grammars().constraint(grammar)


def schema(value: object) -> Callable[[], Constraint]:
    return constraints(Wanted("response_format", schema=json.dumps(value)))


def regex(pattern: str) -> Callable[[], Constraint]:
    return constraints(Wanted("guided_regex", regex=pattern))


class Verses:
    """Words of an odd number, each third token a comma, and an end after nine tokens or more."""

    name, failed, finished, closing = "verses", "", False, False

    def __init__(self) -> None:
        self.count = 0

    @property
    def complete(self) -> bool:
        return self.count >= 9

    def _tokens(self) -> list[int]:
        return [IDS[","]] if self.count % 3 == 2 else [*range(5, 19, 2), *[END] * self.complete]

    def allowed(self) -> np.ndarray:
        return np.array([sum(1 << token for token in self._tokens())], np.int32)

    def closer(self, words: np.ndarray) -> int | None:
        return None

    def accept(self, token: int, room: int) -> bool:
        self.count += (fits := token in self._tokens())
        return fits

    def forced(self, room: int) -> list[int]:
        return [IDS[","]] if self.count % 3 == 2 else []


def tokens_of(words: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def at_random(
    made: GrammarConstraint, text: Tokenizer, room: int, rng: random.Random, likely: frozenset[str] = frozenset()
) -> tuple[list[int], bool]:
    """An answer of tokens that are drawn evenly from what is allowed, most often from those of `likely` characters, and
    whether it came to its end."""
    said: list[int] = []
    while len(said) < room:
        for token in made.forced(room - len(said)):
            assert made.accept(token, room - len(said))
            said.append(token)
        if made.finished:
            break
        tokens = sorted(tokens_of(made.allowed()))
        short = [token for token in tokens if likely.issuperset(text.pieces[token])]
        token = rng.choice(short if short and rng.random() < 0.9 else tokens)
        if token in text.end_ids:
            assert made.complete
            return said, True
        if made.accept(token, room - len(said)):
            said.append(token)
        else:
            assert made.closing
    return said, made.finished
