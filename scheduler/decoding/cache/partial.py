"""The base of caches that compute some positions of the canvas and leave out others between them.

They keep for each position the token with which it was last computed. Where the canvas holds another token now, keys
and values are those of the old one, usually a mask; so the position is computed in any case, as is one that was never
computed.
"""

from __future__ import annotations

import numpy as np

from ...contract import Ints
from ..boundaries import Bools
from ..params import Params
from .base import CachePolicy, Canvas, ComputeRange, Progress, RequestExtent

BRIDGE = 4  # shorter gaps are computed too: that costs less than another row
NEVER = -1  # the token of a position that has not been computed


class Partial(CachePolicy):
    """Counts the steps since the last full pass. The first step is one."""

    reads_canvas = True

    def __init__(self, params: Params) -> None:
        self._computed: Ints | None = None  # [length] the token with which each canvas position was last computed
        self._steps = 0  # since the last full pass, which counts

    @property
    def begun(self) -> bool:
        return self._computed is not None

    def changed(self, canvas: Canvas) -> Bools:
        """[length] where the canvas differs from what was computed."""
        different: Bools = canvas.tokens != self._computed
        return different

    @property
    def uncomputed(self) -> Bools:
        """[length] where no step has computed anything."""
        return np.zeros(0, np.bool_) if self._computed is None else self._computed == NEVER

    def full(self, extent: RequestExtent) -> ComputeRange:
        return ComputeRange(0, extent.end, extent.end, refresh=self.begun)

    def some(self, extent: RequestExtent, wanted: Bools, visible: int | None = None) -> ComputeRange:
        """The range of the positions `wanted` [length], those that changed and the first open one."""
        return self.ranges(extent, wanted | self.changed(extent.canvas), visible)

    def ranges(self, extent: RequestExtent, wanted: Bools, visible: int | None = None) -> ComputeRange:
        """The range of the positions `wanted` [length], which this changes, and the first open one."""
        canvas = extent.canvas
        wanted[canvas.open.argmax()] = True
        positions = canvas.origin + np.flatnonzero(wanted[: extent.end - canvas.origin])
        start, end = int(positions[0]), int(positions[-1]) + 1
        ends = np.flatnonzero(np.diff(positions) > BRIDGE)
        gaps = zip((positions[ends] + 1).tolist(), positions[ends + 1].tolist(), strict=True)
        return ComputeRange(start, end, max(end, visible or extent.end), gaps=tuple(gaps))

    def computed(self, range_: ComputeRange, extent: RequestExtent, progress: Progress) -> None:
        canvas = extent.canvas
        if self._computed is None:
            self._computed = np.full(len(canvas.tokens), NEVER, np.int32)
        self._steps = 1 if is_full(range_, extent) else self._steps + 1
        for start, end in range_.stretches:
            here = slice(max(start - canvas.origin, 0), max(end - canvas.origin, 0))
            self._computed[here] = canvas.tokens[here]


def is_full(range_: ComputeRange, extent: RequestExtent) -> bool:
    return range_.start == 0 and range_.end == extent.end and not range_.gaps
