"""How much of the same the tests do: `make test` a part, so that it takes minutes; `make test-golden`, which sets
GOLDEN, all. Random examples are the same in each run, so that a red run is due to the change that it ran on;
`make explore`, which sets EXPLORE, looks for new ones."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

ALL = os.environ.get("GOLDEN") == "all"
EXPLORING = "EXPLORE" in os.environ
LONG = pytest.mark.skipif(not ALL, reason="takes long: `make test-golden` runs it")

T = TypeVar("T")


def part(items: Iterable[T], one_in: int, seed: str = "") -> list[T]:
    """All of them, or one in so many, drawn at random, and always the same for a seed: a stride could coincide with a
    period of the items."""
    found = list(items)
    return found if ALL else random.Random(f"{seed}{len(found)}").sample(found, -(-len(found) // one_in))


def crossed(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """All combinations of the values of several axes, or as few as have each value in one of them."""
    found = [list(axis) for axis in axes]
    if ALL:
        return list(itertools.product(*found))
    return [tuple(axis[number % len(axis)] for axis in found) for number in range(max(map(len, found)))]
