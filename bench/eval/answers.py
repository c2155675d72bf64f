"""Numbers in the answers to word problems, compared as decimals; the patterns are those of lm-evaluation-harness."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

HASHES = re.compile(r"#### (-?[0-9.,]+)")  # GSM8K's own form
THE_ANSWER = re.compile(r"The answer is (-?[0-9.,]+).")  # that of chains of thought
ANY_NUMBER = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")
IGNORED = re.compile(r"[,$]")


def first(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found[1] if found else None


def last_number(text: str) -> str | None:
    return next(reversed(ANY_NUMBER.findall(text)), None)


def expected(answer: str) -> str:
    """The result in a GSM8K answer: what follows `#### `."""
    return answer.rpartition("#### ")[2].strip()


def same_number(one: str | None, other: str) -> bool:
    """Commas, dollar signs, case, and a full stop at the end do not count, and numbers are the same in any notation
    (18 is 18.0)."""
    if one is None:
        return False
    bare = [IGNORED.sub("", text).removesuffix(".").lower() for text in (one, other)]
    try:
        return Decimal(bare[0]) == Decimal(bare[1])
    except InvalidOperation:  # as "1.2.3", which is no number
        return bare[0] == bare[1]
