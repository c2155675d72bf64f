"""The status of every lane of every request after a step, and predicted ends of answers.

Both are some numpy calls over all positions of the step at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .contract import Doubles, Ints
from .decoding.boundaries import Bools, Boundary, Longs, Nesting, Packed, boundaries
from .decoding.lane_tree import Lane
from .decoding.lanes.base import ABSENT, LaneStatus
from .decoding.vocabulary import END, Vocabulary

FAR = np.iinfo(np.int64).max


class LaneSnapshot(NamedTuple):
    """A request after a step: `tokens` [positions] from the start of its first live lane to the end of its last, and
    `settled` [positions], where the network's proposals have been stable (None: not needed)."""

    lanes: Sequence[Lane]
    tokens: Ints
    settled: Bools | None
    boundary: Boundary
    nesting: Nesting
    min_fill: float
    marks: int = 0  # token classes to look for


def lane_statuses(snapshots: Sequence[LaneSnapshot], vocabulary: Vocabulary) -> list[list[LaneStatus]]:
    """The status of each live lane of each request. A boundary counts if it is neither the first nor the last position
    of its lane, and if enough of the lane before it is committed."""
    if not snapshots:
        return []
    packed = np.concatenate([snapshot.tokens for snapshot in snapshots])
    starts = np.cumsum([0, *(len(snapshot.tokens) for snapshot in snapshots[:-1])])
    lanes = [(lane, each, start) for each, start in zip(snapshots, starts.tolist(), strict=True) for lane in each.lanes]
    first = np.array([start + lane.start - each.lanes[0].start for lane, each, start in lanes])
    sizes = np.array([lane.end - lane.start for lane, _, _ in lanes])
    # A lane's stretch reaches to the next lane. Positions between lanes are committed and belong to none.
    stretches = np.diff(first, append=len(packed))
    offset = np.arange(len(packed)) - np.repeat(first, stretches)
    inside = offset < np.repeat(sizes, stretches)
    masked = packed == vocabulary.mask_id

    open_through = np.cumsum(masked)
    open_before_lane = open_through[first] - masked[first]
    open_here = open_through - np.repeat(open_before_lane, stretches)  # masks in [lane start, this position]
    filled = offset + 1 - open_here
    step = Packed(packed, starts, [each.boundary for each in snapshots], [each.nesting for each in snapshots])
    forks = boundaries(step, offset, vocabulary)
    forks &= filled >= np.repeat([each.min_fill for _, each, _ in lanes], stretches) * (offset + 1)
    forks &= (offset > 0) & (offset < np.repeat(sizes, stretches) - 1)
    fork = np.maximum.reduceat(np.where(forks, offset, ABSENT), first)
    if any(each.settled is not None for each in snapshots):
        fork = np.where(fork == ABSENT, _stable_fork(snapshots, offset, first, sizes), fork)
    classes = np.where(inside, vocabulary.classes[packed], 0)
    end = np.minimum.reduceat(np.where((classes & END) != 0, offset, FAR), first)
    mark = np.full(len(first), FAR)
    if any(each.marks for each in snapshots):
        wanted = np.repeat([each.marks for _, each, _ in lanes], stretches)
        mark = np.minimum.reduceat(np.where((classes & wanted) != 0, offset, FAR), first)

    origin = np.array([lane.start for lane, _, _ in lanes])
    columns = (
        open_here[first + sizes - 1],
        np.where(fork == ABSENT, ABSENT, fork + origin),
        np.where(end == FAR, ABSENT, end + origin),
        np.where(mark == FAR, ABSENT, mark + origin),
    )
    statuses = iter([LaneStatus(*lane) for lane in zip(*(column.tolist() for column in columns), strict=True)])
    return [[next(statuses) for _ in each.lanes] for each in snapshots]


def _stable_fork(snapshots: Sequence[LaneSnapshot], offset: Longs, first: Longs, sizes: Longs) -> Longs:
    """The last position of each lane's leading run of settled proposals, if it is half of the lane, but not all."""
    settled = np.concatenate(
        [np.zeros(len(each.tokens), np.bool_) if each.settled is None else each.settled for each in snapshots]
    )
    run = np.minimum.reduceat(np.where(settled, FAR, offset), first)
    return np.where((run < sizes) & (2 * run >= sizes), run - 1, ABSENT)


class EndSpan(NamedTuple):
    """Absolute positions `[start, end)` of a request in a step. A proposed end token counts there from the confidence
    `threshold` on."""

    request_id: int
    start: int
    end: int
    threshold: float


def predicted_ends(spans: Sequence[EndSpan], ends: Bools, confidence: Doubles) -> dict[int, int]:
    """The first absolute position at which the network is about to end each answer, by request id. `ends` [n] are the
    open positions of all `spans` at which it proposes an end token."""
    owner, start, stop, threshold = (np.array(column) for column in zip(*spans, strict=True))
    sizes = stop - start
    found = np.flatnonzero(ends & (confidence >= np.repeat(threshold, sizes)))
    position = np.arange(len(ends)) + np.repeat(start - np.cumsum(sizes) + sizes, sizes)
    # The first position of a request is the last that is written to the dictionary.
    return dict(zip(np.repeat(owner, sizes)[found][::-1].tolist(), position[found][::-1].tolist(), strict=True))
