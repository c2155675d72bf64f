"""Numbers with their nouns."""

from __future__ import annotations


def counted(number: int, noun: str, ending: str = "s") -> str:
    """`1 call`, but `2 calls`."""
    return f"{number} {noun}{'' if number == 1 else ending}"
