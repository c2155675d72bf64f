"""Bounds the regular expressions that files bring: Python's engine goes back and forth, and some would never end."""

from __future__ import annotations

import re

MOST_REPEATS = 4  # of one pattern: each multiplies the time by the length of a name
CHARACTER = re.compile(r"\\.|\[\^?\]?[^\]]*\]", re.DOTALL)  # what stands for one, and is no part of the syntax below
SYNTAX = re.compile(r"\(\??|\)|[*+?{|]")


def checked_pattern(text: str) -> str:
    """The text. Raises `ValueError` if it is no regular expression, or repeats too much: a group in which something
    repeats or may be one thing or another, or more than `MOST_REPEATS` parts."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError):
        raise ValueError("no regular expression") from None
    open_groups, closed, repeats = [False], (-1, False), 0  # whether each may match one text in several ways
    for token in SYNTAX.finditer(CHARACTER.sub("a", text)):
        match token[0]:
            case "(" | "(?":
                open_groups.append(False)
            case ")" if len(open_groups) > 1:
                ambiguous = open_groups.pop()
                open_groups[-1] |= ambiguous
                closed = token.end(), ambiguous
            case "*" | "+" | "{":
                repeats += 1
                if closed == (token.start(), True) or repeats > MOST_REPEATS:
                    raise ValueError("a regular expression that repeats too much")
                open_groups[-1] = True
            case _:
                open_groups[-1] = True
    return text
