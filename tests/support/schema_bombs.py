"""Schemas of a few kilobytes that take very long, or much memory, to compile."""

from __future__ import annotations

from typing import Any


def patterns(count: int) -> dict[str, Any]:
    """Disjoint patterns: each is compared with each."""
    return {"type": "object", "patternProperties": {f"^k{number}_": {"type": "string"} for number in range(count)}}


ENDLESS: dict[str, dict[str, Any]] = {
    "intersection": {"allOf": [{"type": "string", "pattern": f"^[ab]*a[ab]{{{n}}}$"} for n in range(5, 35)]},
    "500 patterns": patterns(500),
    "800 patterns": patterns(800),
    "multiples": {"allOf": [{"type": "integer", "multipleOf": n} for n in (7, 11, 13, 17, 19, 23)]},
    "multiples of numbers": {"allOf": [{"multipleOf": n} for n in (7, 11, 13, 17, 19, 23)]},
}
HUGE_ENUM = {"enum": [f"value number {number}" for number in range(3000)]}
# Compiled at once, it meets new states of its lexer at every token.
ENDLESS_LEXER = {"type": "string", "pattern": "^[a-z]*a[a-z]{200}$"}
