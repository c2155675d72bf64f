"""What a cache policy sees of a request, and the window it answers with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from ...contract import Doubles, Ints
from ..boundaries import Bools, Longs


@dataclass(frozen=True, slots=True)
class Canvas:
    """What stood on a canvas before a step: `tokens` [length] from the absolute position `origin` on."""

    origin: int
    tokens: Ints
    mask_id: int

    @property
    def open(self) -> Bools:
        """[length] where it holds the mask."""
        masks: Bools = self.tokens == self.mask_id
        return masks


NOTHING = Canvas(0, np.zeros(0, np.int32), 0)


class RequestExtent(NamedTuple):
    """A request before a step, in absolute positions.

    `first` and `last` bound the live lanes; `end` is as far as the step may look (look-ahead included); everything
    before `frontier` is committed. The `canvas` is for policies that look at it.
    """

    first: int
    last: int
    end: int
    frontier: int
    canvas: Canvas = NOTHING


class ComputeRange(NamedTuple):
    """A step computes `[start, end)` but for the `gaps` in it, ascending, and sees `[0, visible)`; `refresh` if it
    computes anew what was cached. Without `drives` it only does that, and the lanes wait."""

    start: int
    end: int
    visible: int
    refresh: bool = False
    drives: bool = True
    gaps: tuple[tuple[int, int], ...] = ()

    @property
    def stretches(self) -> Iterator[tuple[int, int]]:
        """What it computes, in order."""
        start = self.start
        for gap, behind in self.gaps:
            yield start, gap
            start = behind
        yield start, self.end

    def covering(self, start: int, end: int) -> ComputeRange:
        """As this one, and `[start, end)` is computed as well."""
        bounds = min(self.start, start), max(self.end, end)
        edges = [(bounds[0], self.start), *self.gaps, (self.end, bounds[1])]
        cut = [part for a, b in edges for part in ((a, min(b, start)), (max(a, end), b))]
        gaps = tuple(sorted({(a, b) for a, b in cut if a < b}))
        return self._replace(start=bounds[0], end=bounds[1], visible=max(self.visible, bounds[1]), gaps=gaps)

    def leaves_out(self, position: int) -> bool:
        return any(start <= position < end for start, end in self.gaps)


class Progress(NamedTuple):
    """What a step brought a request: lanes that finished, forks, and the frontier behind it, in absolute positions."""

    finished: int
    forks: int
    frontier: int


class StepConfidence(NamedTuple):
    """What a step showed: the `confidence` [n] of the network's proposals at absolute `positions` [n], ascending."""

    positions: Longs
    confidence: Doubles


class CachePolicy(Protocol):
    """One object per request."""

    @property
    def keeps_prompt(self) -> bool:
        """Whether the prompt is computed once only, before a canvas of masks."""
        ...

    @property
    def reads_canvas(self) -> bool:
        """Whether it must see the canvas, and what steps show of it."""
        ...

    def compute_range(self, reach: RequestExtent) -> ComputeRange:
        """What the next step computes: at least the first open position, which a lane must be able to commit. Changes
        nothing: the step may have to wait for budget."""
        ...

    def observe(self, shown: StepConfidence) -> None:
        """What the step in flight has shown, before it counts as computed; only told to one that looks."""
        ...

    def computed(self, window: ComputeRange, reach: RequestExtent, progress: Progress) -> None:
        """`window` was computed, and brought `progress`."""
        ...


class Blind:
    """What policies answer that know their windows by the lanes alone."""

    reads_canvas = False

    def observe(self, shown: StepConfidence) -> None:
        pass
