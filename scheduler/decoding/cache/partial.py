"""What those caches have in common that compute some positions of the canvas and leave out others between them.

They know of each position with which token it was last computed. Where it holds another one now, its keys and values
are those of what it was, a mask as a rule; so it is computed in any case. A position that was never computed is, too.
"""

from __future__ import annotations

import numpy as np

from ...contract import Ints
from ..boundaries import Bools
from .base import (
    Blind,
    Canvas,
    ComputeRange,
    Progress,
    RequestExtent,
)

BRIDGE = 4  # positions computed with fewer than so many between them share a row: what lies between costs less than one
NEVER = -1  # the token of a position that has not been computed


class Partial(Blind):
    """Keeps count of the steps since the last full pass, the first of which comes first."""

    keeps_prompt = False
    reads_canvas = True

    def __init__(self) -> None:
        self._held: Ints | None = None  # [length] the token with which each canvas position was last computed
        self._steps = 0  # since the last full pass, which counts

    @property
    def begun(self) -> bool:
        return self._held is not None

    def changed(self, canvas: Canvas) -> Bools:
        """[length] where there is something else than what was computed."""
        different: Bools = canvas.tokens != self._held
        return different

    def full(self, reach: RequestExtent) -> ComputeRange:
        return ComputeRange(0, reach.end, reach.end, refresh=self.begun)

    def part(self, reach: RequestExtent, wanted: Bools, visible: int | None = None) -> ComputeRange:
        """What is `wanted` [length], what has changed and the first open position, as far as the step may look."""
        canvas = reach.canvas
        wanted = wanted | self.changed(canvas)
        wanted[canvas.open.argmax()] = True
        positions = canvas.origin + np.flatnonzero(wanted[: reach.end - canvas.origin])
        start, end = int(positions[0]), int(positions[-1]) + 1
        ends = np.flatnonzero(np.diff(positions) > BRIDGE)
        gaps = zip((positions[ends] + 1).tolist(), positions[ends + 1].tolist(), strict=True)
        return ComputeRange(start, end, max(end, visible or reach.end), gaps=tuple(gaps))

    def computed(self, window: ComputeRange, reach: RequestExtent, progress: Progress) -> None:
        canvas = reach.canvas
        if self._held is None:
            self._held = np.full(len(canvas.tokens), NEVER, np.int32)
        self._steps = 1 if is_full(window, reach) else self._steps + 1
        for start, end in window.stretches:
            here = slice(max(start - canvas.origin, 0), max(end - canvas.origin, 0))
            self._held[here] = canvas.tokens[here]


def is_full(window: ComputeRange, reach: RequestExtent) -> bool:
    return window.start == 0 and window.end == reach.end and not window.gaps
