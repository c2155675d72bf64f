"""Reads what a step left in every lane of every request, in some numpy calls over all positions at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .contract import Ints
from .decoding.boundaries import (
    Bools,
    Boundary,
    Longs,
    Nesting,
    Packed,
    boundaries,
)
from .decoding.lane_tree import Lane
from .decoding.lanes.base import ABSENT, LaneStatus
from .decoding.vocabulary import END, Vocabulary

FAR = np.iinfo(np.int64).max


class LaneSnapshot(NamedTuple):
    """A request after a step: `tokens` [positions] from the start of its first live lane to the end of its last, and
    `settled` alike, which of them the network has proposed again and again (None: nobody asked)."""

    lanes: Sequence[Lane]
    tokens: Ints
    settled: Bools | None
    boundary: Boundary
    nesting: Nesting
    min_fill: float
    marks: int = 0  # classes of tokens that are looked for


def lane_statuses(views: Sequence[LaneSnapshot], vocabulary: Vocabulary) -> list[list[LaneStatus]]:
    """Facts of each live lane of each request. A boundary counts if it is neither the first nor the last position of
    its lane, and enough before it is committed."""
    if not views:
        return []
    packed = np.concatenate([view.tokens for view in views])
    starts = np.cumsum([0, *(len(view.tokens) for view in views[:-1])])
    lanes = [(lane, view, start) for view, start in zip(views, starts.tolist(), strict=True) for lane in view.lanes]
    first = np.array([start + lane.start - view.lanes[0].start for lane, view, start in lanes])
    sizes = np.array([lane.end - lane.start for lane, _, _ in lanes])
    # A lane's stretch reaches to the next lane: what lies between, if anything, is committed and belongs to none.
    stretches = np.diff(first, append=len(packed))
    offset = np.arange(len(packed)) - np.repeat(first, stretches)
    inside = offset < np.repeat(sizes, stretches)
    masked = packed == vocabulary.mask_id

    open_through = np.cumsum(masked)
    open_before_lane = open_through[first] - masked[first]
    open_here = open_through - np.repeat(open_before_lane, stretches)  # masks in [lane start, this position]
    filled = offset + 1 - open_here
    step = Packed(packed, starts, [view.boundary for view in views], [view.nesting for view in views])
    forks = boundaries(step, offset, vocabulary)
    forks &= filled >= np.repeat([view.min_fill for _, view, _ in lanes], stretches) * (offset + 1)
    forks &= (offset > 0) & (offset < np.repeat(sizes, stretches) - 1)
    fork = np.maximum.reduceat(np.where(forks, offset, ABSENT), first)
    if any(view.settled is not None for view in views):
        fork = np.where(fork == ABSENT, _stable_fork(views, offset, first, sizes), fork)
    ends = inside & ((vocabulary.classes[packed] & END) != 0)
    end = np.minimum.reduceat(np.where(ends, offset, FAR), first)
    ended = end != FAR
    mark = np.full(len(first), FAR)
    if any(view.marks for view in views):
        asked = np.repeat([view.marks for _, view, _ in lanes], stretches)
        mark = np.minimum.reduceat(np.where(inside & ((vocabulary.classes[packed] & asked) != 0), offset, FAR), first)

    origin = np.array([lane.start for lane, _, _ in lanes])
    columns = (
        open_here[first + sizes - 1],
        np.where(fork == ABSENT, ABSENT, fork + origin),
        np.where(ended, end + origin, ABSENT),
        np.where(mark != FAR, mark + origin, ABSENT),
    )
    facts = iter([LaneStatus(*lane) for lane in zip(*(column.tolist() for column in columns), strict=True)])
    return [[next(facts) for _ in view.lanes] for view in views]


def _stable_fork(views: Sequence[LaneSnapshot], offset: Longs, first: Longs, sizes: Longs) -> Longs:
    """The last position of each lane's leading run of settled proposals, if it is half of the lane, but not all."""
    settled = np.concatenate(
        [np.zeros(len(view.tokens), np.bool_) if view.settled is None else view.settled for view in views]
    )
    run = np.minimum.reduceat(np.where(settled, FAR, offset), first)
    return np.where((run < sizes) & (2 * run >= sizes), run - 1, ABSENT)
