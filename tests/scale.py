"""Says how much of the same the tests do: `make test` a part, so that it takes minutes; `make test-golden`, which sets
GOLDEN, all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

ALL = os.environ.get("GOLDEN") == "all"

T = TypeVar("T")


def part(those: Iterable[T], one_in: int) -> list[T]:
    """All of them, or one in so many, of which the first is one."""
    return list(those)[:: 1 if ALL else one_in]
