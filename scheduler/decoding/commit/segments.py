"""Segments of an array: the operations of numpy, for each lane or each request of a step, in one call for all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ...contract import Doubles

Bools = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.intp]
Array = npt.NDArray[Any]

NONE = -1  # no position


def whole_rows(values: Array) -> Array:
    """[n] the rows of `values` [n, ...], each as one opaque value: numpy writes these several times faster."""
    if values.ndim == 1:
        return values
    row = np.dtype((np.void, values.itemsize * values[0].size))
    return np.ascontiguousarray(values).reshape(len(values), -1).view(row)[:, 0]


class Segments:
    """The segments `[starts, ends)` [s] of n positions: ascending and disjoint. None of them is empty."""

    def __init__(self, starts: Longs, ends: Longs, size: int) -> None:
        self.starts, self.ends, self.size = starts, ends, size

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def sizes(self) -> Longs:
        """[s] the positions of each segment."""
        return self.ends - self.starts

    @cached_property
    def index(self) -> Longs:
        """[n] the number of the segment that each position is in, or s."""
        count = len(self)
        bounds = np.zeros(2 * count + 2, np.intp)
        bounds[1:-1:2], bounds[2:-1:2], bounds[-1] = self.starts, self.ends, self.size
        numbers = np.full(2 * count + 1, count)
        numbers[1::2] = np.arange(count)
        return np.repeat(numbers, np.diff(bounds))

    @cached_property
    def inside(self) -> Bools:
        """[n] true in a segment."""
        found: Bools = self.index < len(self)
        return found

    def spread(self, values: Array | Sequence[object], outside: object = 0) -> Array:
        """[n] the value [s] of the segment that each position is in, or `outside`."""
        given = np.asarray(values)
        return np.append(given, np.array(outside, given.dtype))[self.index]

    def any(self, which: Bools) -> Bools:
        """[s] true if one of its positions is among `which` [n]."""
        return self._reduced(np.logical_or, which)

    def count(self, which: Bools) -> Longs:
        """[s] the number of its positions among `which` [n]."""
        return self._reduced(np.add, which.astype(np.intp))

    def first(self, which: Bools) -> Longs:
        """[s] the leftmost of its positions among `which` [n], or `NONE`."""
        places = np.flatnonzero(which)[::-1]
        found = np.full(len(self) + 1, NONE)
        found[self.index[places]] = places  # the last one that is written stays
        return found[:-1]

    def leading(self, which: Bools) -> Bools:
        """[n] the positions before the first of their segment that is not among `which` [n]."""
        stop = self.first(~which)
        return np.arange(self.size) < self.spread(np.where(stop == NONE, self.ends, stop))

    def highest(self, score: Doubles, among: Bools) -> Doubles:
        """[s] the highest `score` [n] of the positions `among` [n], or minus infinity."""
        return self._reduced(np.maximum, np.where(among, score, -np.inf))

    def best(self, score: Doubles, among: Bools) -> Longs:
        """[s] the position with the best `score` [n] of those `among` [n], the leftmost of equals, or `NONE`."""
        return self.first(among & ~(score < self.spread(self.highest(score, among))))

    def top(self, score: Doubles, among: Bools, count: Longs | int) -> Bools:
        """[n] the `count` [s] best by `score` [n] of those `among` [n], the leftmost of equals first."""
        taken = np.minimum(count, self.count(among))
        if not (taken > 1).any():
            chosen = np.zeros(self.size, np.bool_)
            chosen[self.best(score, among)[taken == 1]] = True
            return chosen
        ranked = self.falling(score, among)
        least = np.where(taken > 0, ranked[np.arange(len(self)), taken - 1], np.inf)
        least_here = self.spread(least)
        better = among & (score > least_here) & self.inside
        equal = among & ~better & ~(score < least_here) & self.inside
        before: Longs = np.cumsum(equal) - equal
        room = before[self.starts] + taken - self.count(better)
        return better | (equal & (before < self.spread(room)))

    def falling(self, score: Doubles, among: Bools) -> Doubles:
        """[s, any] the values of `score` [n] of those `among` [n], in falling order, and then minus infinity."""
        inside = np.arange(self.sizes.max(initial=1)) < self.sizes[:, None]
        grid = np.full(inside.shape, np.inf)
        grid[inside] = np.where(among, -score, np.inf)[self.inside]
        grid.sort(axis=1)
        return -grid

    @cached_property
    def _borders(self) -> Longs:
        """Start and end of each segment, as `reduceat` takes them."""
        borders = np.stack((self.starts, self.ends), 1).reshape(-1)
        return borders[:-1] if len(self) and self.ends[-1] == self.size else borders

    def _reduced(self, operation: np.ufunc, values: Array) -> Array:
        """[s] the `values` [n] of each segment in one; what lies between segments is dropped."""
        found: Array = operation.reduceat(values, self._borders)[::2]
        return found
