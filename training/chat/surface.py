"""Wordings as people type them: alternatives, slots, and then case, punctuation and slips of the finger."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from random import Random

SLOT = re.compile(r"(\{[^{}]*\})")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
OPENINGS = (
    "hey, ", "ok, ", "so, ", "um, ", "please ", "hi, ", "hello, ", "well, ", "and ", "now ", "quick question: ",
    "tell me, ", "I wonder, ", "one thing: ", "hi! ", "hey ", "can you tell me, ", "be so kind: ",
)  # fmt: skip
CLOSINGS = (" please", " thanks", " pls", ", please", " for me", " now", " then", " :)", " thx", ", can you")


@dataclass(frozen=True, slots=True)
class Choice:
    """Alternatives, each a row of texts and choices."""

    options: tuple[tuple[str | Choice, ...], ...]


@cache
def parsed(pattern: str) -> Choice:
    """A pattern such as `(What is|What's) {a} (plus|and) {b}?`. Raises `ValueError` for unequal brackets."""
    stack: list[list[list[str | Choice]]] = [[[]]]
    for piece in re.split(r"([()|])", pattern):
        if piece == "(":
            stack.append([[]])
        elif piece == "|" and len(stack) > 1:
            stack[-1].append([])
        elif piece == ")":
            if len(stack) == 1:
                raise ValueError(f"a bracket too many in {pattern!r}")
            done = Choice(tuple(tuple(row) for row in stack.pop()))
            stack[-1][-1].append(done)
        elif piece:
            stack[-1][-1].append(piece)
    if len(stack) != 1:
        raise ValueError(f"a bracket is open in {pattern!r}")
    return Choice(tuple(tuple(row) for row in stack[0]))


def expanded(r: Random, choice: Choice) -> str:
    row = r.choice(choice.options) if len(choice.options) > 1 else choice.options[0]
    return "".join(part if isinstance(part, str) else expanded(r, part) for part in row)


def say(r: Random, patterns: str | tuple[str, ...], **slots: object) -> str:
    """One of the wordings, as it is written."""
    pattern = patterns if isinstance(patterns, str) else r.choice(patterns)
    return expanded(r, parsed(pattern)).format(**slots)


def ask(r: Random, patterns: str | tuple[str, ...], *, plain: bool = False, **slots: object) -> str:
    """One of the wordings, as people type it. `plain`: nothing is put before or after it. Slots are kept letter by
    letter."""
    pattern = patterns if isinstance(patterns, str) else r.choice(patterns)
    text = expanded(r, parsed(pattern))
    if not plain and r.random() < 0.12:
        opening = r.choice(OPENINGS)
        text = opening[:1].upper() + opening[1:] + text[:1].lower() + text[1:]
    body, end = (text[:-1], text[-1]) if text[-1:] in ".?!" else (text, "")
    if not plain and r.random() < 0.07:
        body += r.choice(CLOSINGS)
    chance = r.random()
    if chance < 0.3:
        end = ""
    elif chance < 0.34:
        end *= 2
    elif chance < 0.37:
        end = "." if end == "?" else "?"
    if r.random() < 0.6:
        body = _rough(r, body)
    return body.format(**slots) + end


def _rough(r: Random, body: str) -> str:
    """The text between slots in other case and with slips."""
    pieces = SLOT.split(body)
    lower, slips = r.random() < 0.6, (r.random() < 0.15) + (r.random() < 0.03)
    if lower:
        pieces[::2] = [piece.lower() for piece in pieces[::2]]
    for _ in range(slips):
        place = r.randrange(0, len(pieces), 2)
        pieces[place] = slip(r, pieces[place])
    return "".join(pieces)


def slip(r: Random, text: str) -> str:
    """The text with one mistake in a word of four letters or more, if there is one."""
    words = list(re.finditer(r"[a-zA-Z']{4,}", text))
    if not words:
        return text
    word = r.choice(words)
    at = r.randrange(word.start() + 1, word.end() - 1)
    kind = r.randrange(4)
    if kind == 0:
        return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    if kind == 1:
        return text[:at] + text[at + 1 :]
    if kind == 2:
        return text[:at] + text[at] + text[at:]
    return text[:at] + r.choice(LETTERS) + text[at + 1 :]
