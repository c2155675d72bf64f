"""Pieces of a page that several tables share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def where(run: Mapping[str, Any]) -> str:
    """Return the card, the version of torch and the day of a run."""
    return f"{run['card'] or 'CPU'} (torch {run['versions']['torch']}, {run['date'][:10]})"


def number(value: float | None, factor: float, digits: int) -> str:
    return "-" if value is None else f"{value * factor:.{digits}f}"
