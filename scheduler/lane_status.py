"""The status of the lanes of every request after a step, and predicted ends of answers.

Both are some numpy calls over all positions of the step at once. Few positions can be boundaries or ends: the costly
part looks at those alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .contract import Doubles, Ints, make
from .decoding.boundaries import Bools, Boundary, Longs, Nesting, Packed, boundaries
from .decoding.lane_tree import GENERATE, Lane
from .decoding.lanes.base import ABSENT, LaneStatus
from .decoding.vocabulary import COMMA, DIGIT, END, FENCE, LINE, PERIOD, SENTENCE, Vocabulary

AUTO, PROSE, STABLE, STRIDE = Boundary.AUTO, Boundary.PROSE, Boundary.STABLE, Boundary.STRIDE
FAR = np.iinfo(np.int64).max
MAY_END_PART = SENTENCE | LINE | COMMA  # token classes of boundaries


class LaneSnapshot(NamedTuple):
    """A request after a step: `tokens` [positions] from the start of its first live lane to the end of its last, and
    `settled` [positions], where the network's proposals have been stable (None: not needed). While it is `crowded` no
    lane forks, unless another one ends in this step."""

    lanes: Sequence[Lane]
    tokens: Ints
    settled: Bools | None
    boundary: Boundary
    nesting: Callable[[], Nesting]  # at the start of its first live lane
    min_fill: float
    marks: int = 0  # token classes to look for
    crowded: bool = False


class RequestStatus(NamedTuple):
    """The live lanes of a request after a step: the masks in each, the first open position of all (on the canvas,
    `ABSENT` if they are full), and where something happened the status of each lane. It is None if no lane is full, may
    fork, or has an end token or a mark."""

    open: list[int]
    first_open: int
    eventful: list[LaneStatus] | None

    @property
    def lanes(self) -> list[LaneStatus]:
        return self.eventful or [LaneStatus(open_, ABSENT, ABSENT) for open_ in self.open]


class _Step(NamedTuple):
    """The lanes of all requests of a step, and their positions from the first to the last of each request, end to
    end."""

    snapshots: Sequence[LaneSnapshot]
    lanes: Sequence[Lane]
    tokens: Ints
    classes: npt.NDArray[np.uint16]  # of `tokens`
    masks: Longs  # where masks are, ascending
    requests: Longs  # [requests + 1] their first positions
    owners: Longs  # [lanes] the request of each
    first: Longs  # [lanes] first positions
    stop: Longs  # [lanes]
    masks_before: Longs  # [lanes]


def lane_statuses(snapshots: Sequence[LaneSnapshot], vocabulary: Vocabulary) -> list[RequestStatus]:
    """The status of each request. A boundary counts if it is neither the first nor the last position of its lane, and
    if enough of the lane before it is committed. A refine lane does not fork."""
    if not snapshots:
        return []
    if len(snapshots) == 1 and (quiet := _quiet(snapshots[0], vocabulary)) is not None:
        return [quiet]
    lanes = [lane for each in snapshots for lane in each.lanes]
    tokens = np.concatenate([each.tokens for each in snapshots])
    lane_counts = [len(each.lanes) for each in snapshots]
    requests, bounds = _starts([len(each.tokens) for each in snapshots]), _starts(lane_counts)
    starts, ends = np.array([lane.start for lane in lanes]), np.array([lane.end for lane in lanes])
    owners = np.repeat(np.arange(len(snapshots)), lane_counts)
    origins = starts[bounds[:-1]] - requests[:-1]  # from a position of the step to one of the canvas
    origin = origins[owners]
    first, stop = starts - origin, ends - origin
    masks = np.flatnonzero(tokens == vocabulary.mask_id)
    before, after = masks.searchsorted(first), masks.searchsorted(stop)
    step = _Step(snapshots, lanes, tokens, vocabulary.classes[tokens], masks, requests, owners, first, stop, before)

    next_mask, end_mask = before[bounds[:-1]], after[bounds[1:] - 1]
    if len(masks):
        first_open = np.where(next_mask < end_mask, masks.take(next_mask, mode="clip") + origins, ABSENT).tolist()
    else:
        first_open = [ABSENT] * len(snapshots)
    full = before == after
    found = _found(step, full, vocabulary)
    eventful = np.logical_or.reduceat(full | (np.maximum.reduce(found) != ABSENT), bounds[:-1]).tolist()
    open_, edges = (after - before).tolist(), bounds.tolist()
    columns = [open_, *(np.where(place == ABSENT, ABSENT, place + origin).tolist() for place in found)]
    statuses = []
    for start, end, place, happened in zip(edges[:-1], edges[1:], first_open, eventful, strict=True):
        about = [*map(LaneStatus, *[column[start:end] for column in columns])] if happened else None
        statuses.append(make(RequestStatus, (open_[start:end], place, about)))
    return statuses


def _quiet(snapshot: LaneSnapshot, vocabulary: Vocabulary) -> RequestStatus | None:
    """The status of a request of which only the masks matter, as mostly. None: it may have a boundary, an end token or
    a mark. The device waits for this step of one request: see `Vocabulary.kinds_of`."""
    lanes, tokens, settled, boundary, _, _, marks, _ = snapshot
    wanted = END | marks | (0 if boundary is STABLE else MAY_END_PART)
    if settled is not None or boundary is STRIDE or vocabulary.kinds_of(tokens) & wanted:
        return None
    mask_id = vocabulary.mask_id
    masks = [place for place, token in enumerate(tokens.tolist()) if token == mask_id]
    first = lanes[0].start
    if len(lanes) == 1:
        open_ = [len(masks)]
    else:
        edges = [(bisect_left(masks, lane.start - first), bisect_left(masks, lane.end - first)) for lane in lanes]
        open_ = [after - before for before, after in edges]
    about = None if all(open_) else [LaneStatus(count, ABSENT, ABSENT) for count in open_]
    return make(RequestStatus, (open_, first + masks[0] if masks else ABSENT, about))


def _found(step: _Step, full: Bools, vocabulary: Vocabulary) -> tuple[Longs, Longs, Longs]:
    """The last boundary, the first end token and the first mark [lanes], positions of the step or `ABSENT`."""
    snapshots, classes = step.snapshots, step.classes
    forks, ends, marks = np.full((3, len(full)), ABSENT)
    _set_first(ends, step, (classes & END) != 0)
    if any(kinds := [each.marks for each in snapshots]):
        wanted = np.repeat(kinds, np.diff(step.requests))
        _set_first(marks, step, (classes & wanted) != 0)
    may_fork = np.array([each.boundary is not STABLE for each in snapshots])
    if may_fork.any():
        crowded = np.array([each.crowded for each in snapshots])
        crowded[step.owners[full | (ends != ABSENT)]] = False
        _set_forks(forks, step, may_fork & ~crowded, vocabulary)
    if [each.settled is None for each in snapshots].count(False):
        forks = np.where(forks == ABSENT, _stable_fork(step), forks)
    return forks, ends, marks


def _set_first(places: Longs, step: _Step, wanted: Bools) -> None:
    """Set the first `wanted` position of each lane that has one."""
    hits = np.flatnonzero(wanted)
    if len(hits):
        hits = hits[::-1]  # of several values for one place the last one is kept
        lanes = step.first.searchsorted(hits, "right") - 1
        inside = hits < step.stop[lanes]  # tokens between lanes belong to none
        places[lanes[inside]] = hits[inside]


def _set_forks(places: Longs, step: _Step, may_fork: Bools, vocabulary: Vocabulary) -> None:
    """Set the last boundary of each generate lane that has one, in requests [requests] that `may_fork`."""
    wanted = (step.classes & MAY_END_PART) != 0
    for number, each in enumerate(step.snapshots):
        if each.boundary is STRIDE:
            wanted[step.requests[number] : step.requests[number + 1]] = True
    hits = np.flatnonzero(wanted)
    if not len(hits):
        return
    lanes = step.first.searchsorted(hits, "right") - 1
    near = may_fork[step.owners[lanes]] & (hits > step.first[lanes]) & (hits < step.stop[lanes] - 1)
    near &= np.array([lane.role is GENERATE for lane in step.lanes])[lanes]
    hits, lanes = hits[near], lanes[near]
    if not len(hits):
        return
    length = hits + 1 - step.first[lanes]
    filled = length - (step.masks.searchsorted(hits) - step.masks_before[lanes])
    enough = filled >= np.array([each.min_fill for each in step.snapshots])[step.owners[lanes]] * length
    hits, lanes = hits[enough], lanes[enough]
    if len(hits):
        found = _end_parts(step, hits, step.owners[lanes], vocabulary)
        places[lanes[found]] = hits[found]  # of several values for one place the last one is kept


def _end_parts(step: _Step, hits: Longs, owners: Longs, vocabulary: Vocabulary) -> Bools:
    """[hits] where a part ends by the rule of its request, the owner. Neither is a request's first position.

    In prose without numbers the token alone decides; everything else is for `boundaries`."""
    snapshots, classes = step.snapshots, step.classes
    kinds = classes[hits]
    found: Bools = (kinds & (SENTENCE | LINE)) != 0
    numbered = ((kinds & PERIOD) != 0) & ((classes[hits - 1] & DIGIT) != 0)
    fenced = step.requests.searchsorted(np.flatnonzero(classes & FENCE), "right") - 1
    harder = {*owners[numbered].tolist(), *fenced.tolist()}
    numbers = set(owners.tolist())
    for number in numbers:
        rule = snapshots[number].boundary
        if rule is not PROSE and (rule is not AUTO or snapshots[number].nesting().in_code):
            harder.add(number)
    if hard := sorted(harder & numbers):
        offset = np.arange(len(classes)) - np.repeat(step.first, np.diff(step.first, append=len(classes)))
        parts = [slice(step.requests[number], step.requests[number + 1]) for number in hard]
        packed = Packed(
            np.concatenate([snapshots[number].tokens for number in hard]),
            _starts([len(snapshots[number].tokens) for number in hard])[:-1],
            [snapshots[number].boundary for number in hard],
            [snapshots[number].nesting() for number in hard],
        )
        ends = np.zeros(len(classes), np.bool_)
        places = np.concatenate([np.arange(part.start, part.stop) for part in parts])
        ends[places] = boundaries(packed, offset[places], vocabulary)
        found = np.where(np.isin(owners, hard), ends[hits], found)
    return found


def _stable_fork(step: _Step) -> Longs:
    """The last position of each lane's leading run of settled proposals, if it is half of the lane, but not all."""
    settled = np.concatenate(
        [np.zeros(len(each.tokens), np.bool_) if each.settled is None else each.settled for each in step.snapshots]
    )
    first, size = step.first, step.stop - step.first
    run = np.minimum.reduceat(np.where(settled, FAR, np.arange(len(settled))), first)
    run = np.minimum(run, FAR // 2) - first
    return np.where((run < size) & (2 * run >= size), first + run - 1, ABSENT)


def _starts(sizes: Sequence[int]) -> Longs:
    """[sizes + 1] where each begins, end to end."""
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


class EndSpan(NamedTuple):
    """Absolute positions `[start, end)` of a request in a step. A proposed end token counts there from the confidence
    `threshold` on."""

    request_id: int
    start: int
    end: int
    threshold: float


def predicted_ends(spans: Sequence[EndSpan], ends: Longs, confidence: Doubles) -> dict[int, int]:
    """The first absolute position at which the network is about to end each answer, by request id. `ends` [n] are the
    open positions of all `spans`, ascending, at which it proposes an end token with this `confidence` [n]."""
    starts = _starts([span.end - span.start for span in spans])
    numbers = starts.searchsorted(ends, "right") - 1
    sure = confidence >= np.array([span.threshold for span in spans])[numbers]
    # The first position of a request is the last that is written to the dictionary.
    hits = zip(numbers[sure][::-1].tolist(), (ends - starts[numbers])[sure][::-1].tolist(), strict=True)
    return {spans[number].request_id: spans[number].start + offset for number, offset in hits}
