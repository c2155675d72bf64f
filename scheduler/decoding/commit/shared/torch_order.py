"""The order in which torch on a CPU sums and picks: published rules that compare float32 values depend on it.

Source: torch 2.13 with vectors of 8 floats, as on any CPU with AVX2; GNU's C++ library, on whose selection it builds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ....contract import Doubles
from ..base import Longs

VECTOR = 8  # floats that are added at once
SUMS = 4  # that run beside each other
FEW = 64  # no more than one in so many: a heap finds them
SORTED = 3  # so many are sorted rather than parted

MOST = 512  # values of which `mean` knows the order

Singles = npt.NDArray[np.float32]
Pair = tuple[float, int]  # a value and where it lies


def mean(values: Singles) -> np.float32:
    """Of float32 `values` [n], to the last bit what `torch.mean` gives for n up to `MOST`; beyond, it sums by parts."""
    width = VECTOR if len(values) >= VECTOR else 1
    count = len(values) // width
    rows = values[: count * width].reshape(count, width)
    whole = count // SUMS * SUMS
    sums = [_in_turn(rows[first:whole:SUMS]) for first in range(SUMS)]
    sums[0] = _in_turn(np.vstack((sums[0], rows[whole:])))
    total = _in_turn(np.concatenate((values[count * width :], _in_turn(np.stack(sums)))))
    return np.float32(total / np.float32(len(values)))


def _in_turn(rows: Singles) -> Singles:
    """The sum over the first axis, from the first on."""
    nothing = np.zeros((1, *rows.shape[1:]), np.float32)
    total: Singles = np.add.accumulate(np.concatenate((nothing, rows)), axis=0, dtype=np.float32)[-1]
    return total


def topk(values: Doubles, count: int) -> Longs:
    """Where those of `values` [n] are that `torch.topk` picks, in no order. It may pick any of equals."""
    pairs = list(zip(values.tolist(), range(len(values)), strict=True))
    picked = _heaped(pairs, count) if count * FEW <= len(pairs) else _parted(pairs, count)
    return np.array([place for _, place in picked], np.intp)


def _heaped(pairs: list[Pair], count: int) -> list[Pair]:
    """A heap of the best so far with the least of them on top, which whatever is better replaces."""
    heap = pairs[:count]
    for place in reversed(range(count // 2)):
        _sink(heap, place, heap[place])
    for pair in pairs[count:]:
        if pair[0] > heap[0][0]:
            _sink(heap, 0, pair)
    return heap


def _sink(heap: list[Pair], top: int, new: Pair) -> None:
    """The gap at `top` goes down to a leaf along the lesser children, and `new` comes up from there."""
    gap, child = top, 2 * top + 1
    while child < len(heap):
        if child + 1 < len(heap) and heap[child + 1][0] <= heap[child][0]:
            child += 1
        heap[gap] = heap[child]
        gap, child = child, 2 * child + 1
    while gap > top and heap[(gap - 1) // 2][0] > new[0]:
        heap[gap] = heap[(gap - 1) // 2]
        gap = (gap - 1) // 2
    heap[gap] = new


def _parted(pairs: list[Pair], count: int) -> list[Pair]:
    """What holds the last of the best is parted by a median of three until it is small enough to be sorted. (Where
    medians part badly again and again, the library goes over to a heap.)"""
    start, end = 0, len(pairs)
    while end - start > SORTED:
        middle = _median(pairs, start + 1, start + (end - start) // 2, end - 1)
        pairs[start], pairs[middle] = pairs[middle], pairs[start]
        cut = _part(pairs, start + 1, end, pairs[start][0])
        start, end = (cut, end) if cut < count else (start, cut)
    pairs[start:end] = sorted(pairs[start:end], key=lambda pair: -pair[0])
    return pairs[:count]


def _median(pairs: list[Pair], *three: int) -> int:
    """Which of three places has neither the largest value nor the least."""
    a, b, c = (pairs[place][0] for place in three)
    if a > b:
        return three[1 if b > c else 2 if a > c else 0]
    return three[0 if a > c else 2 if b > c else 1]


def _part(pairs: list[Pair], start: int, end: int, pivot: float) -> int:
    """Larger values come before the cut, lesser ones behind it; equals change sides."""
    while True:
        while pairs[start][0] > pivot:
            start += 1
        end -= 1
        while pairs[end][0] < pivot:
            end -= 1
        if start >= end:
            return start
        pairs[start], pairs[end] = pairs[end], pairs[start]
        start += 1
