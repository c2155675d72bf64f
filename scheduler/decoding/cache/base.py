"""The interface of a cache policy: the state of a request before a step, and the range that the step computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ...contract import Doubles, Floats, Ints, Selection
from ..boundaries import Bools, Longs
from ..params import Params, Values


@dataclass(frozen=True, slots=True)
class Canvas:
    """A canvas before a step: `tokens` [length] from the absolute position `origin` on."""

    origin: int
    tokens: Ints
    mask_id: int

    @property
    def open(self) -> Bools:
        """[length] where it holds the mask."""
        masks: Bools = self.tokens == self.mask_id
        return masks


NO_CANVAS = Canvas(0, np.zeros(0, np.int32), 0)


class RequestExtent(NamedTuple):
    """A request before a step, in absolute positions.

    `first` and `last` bound the live lanes; `end` bounds what the step may compute, look-ahead included; everything
    before `frontier` is committed. The `canvas` is for policies that read it.
    """

    first: int
    last: int
    end: int
    frontier: int
    canvas: Canvas = NO_CANVAS


class ComputeRange(NamedTuple):
    """A step computes `[start, end)` except the `gaps` in it, ascending, and sees `[0, visible)`. A `refresh`
    recomputes what was cached. Without `drives` it does only that, and the lanes wait. With a `selection` there are no
    gaps, and later layers leave out some positions."""

    start: int
    end: int
    visible: int
    refresh: bool = False
    drives: bool = True
    gaps: tuple[tuple[int, int], ...] = ()
    selection: Selection | None = None

    @property
    def stretches(self) -> Iterator[tuple[int, int]]:
        """The computed ranges, in order."""
        start = self.start
        for gap, gap_end in self.gaps:
            yield start, gap
            start = gap_end
        yield start, self.end

    def covering(self, start: int, end: int) -> ComputeRange:
        """This range and `[start, end)`."""
        bounds = min(self.start, start), max(self.end, end)
        edges = [(bounds[0], self.start), *self.gaps, (self.end, bounds[1])]
        cut = [piece for a, b in edges for piece in ((a, min(b, start)), (max(a, end), b))]
        gaps = tuple(sorted({(a, b) for a, b in cut if a < b}))
        return self._replace(start=bounds[0], end=bounds[1], visible=max(self.visible, bounds[1]), gaps=gaps)

    def leaves_out(self, position: int) -> bool:
        return any(start <= position < end for start, end in self.gaps)


class Progress(NamedTuple):
    """The result of a step for a request: lanes that finished, forks, and the frontier after it, absolute."""

    finished: int
    forks: int
    frontier: int


class StepConfidence(NamedTuple):
    """The `confidence` [n] of the network's proposals at absolute `positions` [n], ascending, and their `entropy` [n],
    in nats, if the cache reads it."""

    positions: Longs
    confidence: Doubles
    entropy: Floats | None = None


class CachePolicy(ABC):
    """Decides what each step of one request computes. One file for each, and one entry in `cache.CACHES`."""

    NAME: ClassVar[str]
    DEFAULTS: ClassVar[Mapping[str, object]] = {}  # its parameters
    PARAMS: ClassVar[Mapping[str, Values]] = {}  # their values

    reads_canvas: ClassVar[bool] = False  # needs the canvas in extents, and `observe`
    reads_entropy: ClassVar[bool] = False  # needs the entropies of proposals, which the device reports to host rules

    def __init__(self, params: Params) -> None: ...  # noqa: B027

    @property
    def keeps_prompt(self) -> bool:
        """True if the prompt is computed only once, before a canvas of masks."""
        return False

    @abstractmethod
    def compute_range(self, extent: RequestExtent) -> ComputeRange:
        """The range of the next step, which includes the first open position, since a lane must be able to commit it.
        Changes no state: the step may have to wait for budget."""

    def observe(self, confidence: StepConfidence) -> None:  # noqa: B027
        """Take the output of the step in flight, before `computed`."""

    def computed(self, range_: ComputeRange, extent: RequestExtent, progress: Progress) -> None:  # noqa: B027
        """A step has computed `range_` from `extent`, with this `progress`."""
