"""DSB's cache: a window before the lanes is recomputed with them, and everything after so many committed tokens.

A step computes the lanes, and before them the positions that the step before has passed, at least `prefix_window`: the
tokens that have just committed there were computed as masks. All other keys stay as they were, on both sides, as with
`dual`. Once `block_length` tokens have committed since the last full pass, the next step is one. Source: arXiv
2602.05992; lizhuo-luo/DSB llada/generate.py, `generate_dsb_cache`, with its `suffix_window` at 0.
"""

from __future__ import annotations

import numpy as np

from ..params import DEFAULT_SHAPE, Params, Range
from .base import CachePolicy, ComputeRange, Progress, RequestExtent


class Dsb(CachePolicy):
    NAME = "dsb"
    DEFAULTS = {"prefix_window": 24}
    PARAMS = {"prefix_window": Range(0, 4096, whole=True)}

    reads_canvas = True

    def __init__(self, params: Params) -> None:
        size = params.get("block_length")
        self._refresh_every = size if isinstance(size, int) else DEFAULT_SHAPE.block_length
        self._prefix_window = params.integer("prefix_window")
        self._first: int | None = None  # where the lanes began in the last step
        self._masks = 0  # before the last full pass

    def compute_range(self, extent: RequestExtent) -> ComputeRange:
        if self._first is None or self._masks - _masks(extent) >= self._refresh_every:
            return ComputeRange(0, extent.end, extent.end, refresh=self._first is not None)
        before = max(extent.first - self._first, self._prefix_window)
        return ComputeRange(max(extent.first - before, 0), extent.last, extent.end)

    def computed(self, range_: ComputeRange, extent: RequestExtent, progress: Progress) -> None:
        if self._first is None or range_.refresh:
            self._masks = _masks(extent)
        self._first = extent.first


def _masks(extent: RequestExtent) -> int:
    return int(np.count_nonzero(extent.canvas.open))
