"""Remembers what the network proposes for a request, to find the part of a lane on which it has made up its mind."""

from __future__ import annotations

import numpy as np

from ..contract import Ints
from .boundaries import Bools, Longs


class Stability:
    """For each canvas position, for how many steps its token or proposal has been the same."""

    def __init__(self, length: int, steps: int) -> None:
        """Positions count as settled once `steps` steps in a row did not change them."""
        self._steps = steps
        self._last: Ints = np.full(length, -1, np.int32)
        self._unchanged = np.zeros(length, np.int32)

    def update(self, positions: Longs, tokens: Ints) -> None:
        """A step left `tokens` [n] at canvas `positions` [n]: committed ones, and proposals where masks are."""
        same = tokens == self._last[positions]
        self._unchanged[positions] = np.where(same, self._unchanged[positions] + 1, 0)
        self._last[positions] = tokens

    def settled(self, start: int, end: int) -> Bools:
        """Which positions of `[start, end)` are settled."""
        return self._unchanged[start:end] >= self._steps
