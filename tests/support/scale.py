"""Says how much of the same the tests do: `make test` a part, so that it takes minutes; `make test-golden`, which sets
GOLDEN, all."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import TypeVar

ALL = os.environ.get("GOLDEN") == "all"

T = TypeVar("T")


def part(those: Iterable[T], one_in: int) -> list[T]:
    """All of them, or one in so many, drawn at random, but always the same: no stride falls in with a kind's period."""
    found = list(those)
    return found if ALL else random.Random(len(found)).sample(found, -(-len(found) // one_in))
