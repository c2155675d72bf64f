"""Remembers what the network proposes for a request, to find the part of a lane on which it has made up its mind."""

from __future__ import annotations

import numpy as np

from ..contract import Ints
from .boundaries import Bools


class Stability:
    """For each canvas position, for how many steps its token or proposal has been the same."""

    def __init__(self, length: int, steps: int) -> None:
        """Positions count as settled once `steps` steps in a row did not change them."""
        self._steps = steps
        self._last: Ints = np.full(length, -1, np.int32)
        self._unchanged = np.zeros(length, np.int32)

    def update(self, start: int, tokens: Ints) -> None:
        """A step left `tokens` from canvas position `start` on: committed ones, and proposals where masks are."""
        part = slice(start, start + len(tokens))
        self._unchanged[part] += 1
        self._unchanged[part][tokens != self._last[part]] = 0
        self._last[part] = tokens

    def settled(self, start: int, end: int) -> Bools:
        """Which positions of `[start, end)` are settled."""
        return self._unchanged[start:end] >= self._steps
