"""Keeps JSON from repeating a name within one object, which a grammar cannot: it does not know the names so far.

It reads the text of an answer along with its grammar. That spells each string in one way only
(`json_schema.JSON_OPTIONS`), so two names are the same if their bytes are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Spelt = tuple[bytes, int]  # the bytes of a token, and its id

QUOTE, ESCAPE, COMMA, COLON = b'"\\,:'
OPEN_OBJECT, CLOSE_OBJECT, OPEN_ARRAY, CLOSE_ARRAY = b"{}[]"


class Place(NamedTuple):
    """A place in JSON. `stack` has the names so far of each open object, and None for each open array."""

    stack: tuple[frozenset[bytes] | None, ...] = ()
    in_string: bool = False
    escaped: bool = False  # the next byte belongs to an escape
    name: bytes | None = None  # in a name: its bytes so far
    before_name: bool = False  # the next string is a name


def after(place: Place, text: bytes) -> tuple[Place, bool]:
    """Return the place after some more text, and whether that completes a name which its object has already."""
    stack, in_string, escaped, name, before_name = place
    repeats = False
    for byte in text:
        if in_string:
            if byte == QUOTE and not escaped:
                names = stack[-1] if stack else None
                if name is not None and names is not None:
                    repeats = repeats or name in names
                    stack = (*stack[:-1], names | {name})
                in_string, name = False, None
                continue
            escaped = byte == ESCAPE and not escaped
            if name is not None:
                name += bytes((byte,))
        elif byte == QUOTE:
            in_string, name = True, b"" if before_name else None
        elif byte in (OPEN_OBJECT, OPEN_ARRAY):
            before_name = byte == OPEN_OBJECT
            stack = (*stack, frozenset() if before_name else None)
        elif byte in (CLOSE_OBJECT, CLOSE_ARRAY):
            before_name = False
            stack = stack[:-1]
        elif byte == COMMA:
            before_name = bool(stack) and stack[-1] is not None
        elif byte == COLON:
            before_name = False
    return Place(stack, in_string, escaped, name, before_name), repeats


def repeating(place: Place, quoted: Sequence[Spelt], twice: Sequence[Spelt]) -> Iterator[int]:
    """Yield the tokens that would complete a repeated name here. `quoted` are the tokens with a quotation mark, sorted,
    and `twice` those of them with two or more, which may hold a whole name."""
    if not any(place.stack):
        return
    if place.name is not None:
        for name in place.stack[-1] or ():
            if name.startswith(place.name):
                rest = name[len(place.name) :] + b'"'
                at = bisect_left(quoted, (rest, -1))
                while at < len(quoted) and quoted[at][0].startswith(rest):
                    yield quoted[at][1]
                    at += 1
    yield from (token for text, token in twice if after(place, text)[1])
