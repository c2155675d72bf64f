"""The status of the lanes of every request after a step, and predicted ends of answers.

The status of many requests is some numpy calls over all positions of the step at once. Few positions can be boundaries
or ends: the costly part looks at those alone. A few requests are read token by token: after a rest the first call of
each function of numpy takes 5 to 25 microseconds, while a device waits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .contract import Ints, make
from .decoding.boundaries import Bools, Boundary, Longs, Nesting, Packed, boundaries
from .decoding.lane_tree import GENERATE, Lane
from .decoding.lanes.base import ABSENT, LaneStatus
from .decoding.vocabulary import COMMA, DIGIT, END, FENCE, LINE, PERIOD, SENTENCE, Vocabulary

AUTO, PROSE, STABLE, STRIDE = Boundary.AUTO, Boundary.PROSE, Boundary.STABLE, Boundary.STRIDE
FAR = np.iinfo(np.int64).max
MAY_END_PART = SENTENCE | LINE | COMMA  # token classes of boundaries
FEW = 4  # requests that are read one by one
SHORT = 1024  # tokens up to which one is


class LaneSnapshot(NamedTuple):
    """A request after a step: `tokens` [positions] from the start of its first live lane to the end of its last, and
    `settled` [positions], where the network's proposals have been stable (None: not needed). While it is `crowded` no
    lane forks, unless another one ends in this step. With `edges` it may also fork at its first and last position."""

    lanes: Sequence[Lane]
    tokens: Ints
    settled: Bools | None
    boundary: Boundary
    nesting: Callable[[], Nesting]  # at the start of its first live lane
    min_fill: float
    marks: int = 0  # token classes to look for
    crowded: bool = False
    edges: bool = False


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
    """The status of each request. A boundary counts if it is neither the first nor the last position of its lane, or
    with `edges` at any, and if enough of the lane before it is committed. A refine lane does not fork."""
    if len(snapshots) > FEW:
        return _statuses(snapshots, vocabulary)
    found = [_read(each, vocabulary) for each in snapshots]
    rest = [each for each, status in zip(snapshots, found, strict=True) if status is None]
    if not rest:  # mostly
        return [status for status in found if status is not None]
    others = iter(_statuses(rest, vocabulary))
    return [next(others) if status is None else status for status in found]


def _statuses(snapshots: Sequence[LaneSnapshot], vocabulary: Vocabulary) -> list[RequestStatus]:
    """The status of each request, by arrays."""
    lanes = [lane for each in snapshots for lane in each.lanes]
    tokens = np.concatenate([each.tokens for each in snapshots])
    lane_counts = [len(each.lanes) for each in snapshots]
    requests, bounds = starts_of([len(each.tokens) for each in snapshots]), starts_of(lane_counts)
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


def _read(snapshot: LaneSnapshot, vocabulary: Vocabulary) -> RequestStatus | None:
    """The status of one request, token by token. None: only `boundaries` knows where it may fork, as in code."""
    lanes, tokens, settled, boundary, nesting, min_fill, marks, crowded, edges = snapshot
    if settled is not None or boundary is STRIDE or edges or len(tokens) > SHORT:
        return None
    wanted = END | marks | (0 if boundary is STABLE else MAY_END_PART)
    origin, mask_id, classes, listed = lanes[0].start, vocabulary.mask_id, vocabulary.classes.data, tokens.tolist()
    masks = [place for place, token in enumerate(listed) if token == mask_id]
    kinds = [classes[token] for token in listed]
    hits = [place for place, kind in enumerate(kinds) if kind & wanted]
    spans = [(lane.start - origin, lane.end - origin) for lane in lanes]
    open_ = [len(masks)] if len(spans) == 1 else [bisect_left(masks, b) - bisect_left(masks, a) for a, b in spans]
    first_open = origin + masks[0] if masks else ABSENT
    if not hits:  # mostly
        quiet = None if all(open_) else [LaneStatus(count, ABSENT, ABSENT) for count in open_]
        return make(RequestStatus, (open_, first_open, quiet))

    def first(span: tuple[int, int], sought: int) -> int:
        return next((place for place in hits if span[0] <= place < span[1] and kinds[place] & sought), ABSENT)

    ends = [first(span, END) for span in spans]
    may_fork = boundary is not STABLE and (not crowded or not all(open_) or max(ends) != ABSENT)
    found: list[LaneStatus] = []
    for lane, span, count, end in zip(lanes, spans, open_, ends, strict=True):
        fork = ABSENT
        if may_fork and lane.role is GENERATE and (likely := _likely_ends(kinds, masks, hits, span, min_fill)):
            opened = nesting()
            if boundary is not PROSE and (boundary is not AUTO or opened.in_code or any(k & FENCE for k in kinds)):
                return None
            fork = next((at for at in likely if _ends_sentence(kinds, masks, at, opened.bare)), ABSENT)
        places = fork, end, first(span, marks)
        found.append(LaneStatus(count, *[ABSENT if at == ABSENT else origin + at for at in places]))
    eventful = not all(open_) or any(max(one[1:]) != ABSENT for one in found)
    return make(RequestStatus, (open_, first_open, found if eventful else None))


def _likely_ends(
    kinds: list[int], masks: list[int], hits: list[int], span: tuple[int, int], min_fill: float
) -> list[int]:
    """The places in a lane, a `span`, where a part may end because enough before it is committed, the last one first.
    `masks` and `hits` are places, ascending."""
    start, stop = span
    likely = []
    for place in reversed(hits):
        if start < place < stop - 1 and kinds[place] & MAY_END_PART:
            length = place + 1 - start
            if length - bisect_left(masks, place) + bisect_left(masks, start) >= min_fill * length:
                likely.append(place)
    return likely


def _ends_sentence(kinds: list[int], masks: list[int], place: int, bare: bool) -> bool:
    """Return whether a sentence or a line ends at a place that is neither the first nor the last, as `boundaries`
    says of prose. `bare`: before the first place its line has only digits."""
    if not kinds[place] & (SENTENCE | LINE):
        return False
    if not (kinds[place] & PERIOD and kinds[place - 1] & DIGIT):
        return True
    following = bisect_left(masks, place + 1)
    if kinds[place + 1] & DIGIT or masks[following : following + 1] == [place + 1]:
        return False  # a decimal point, or perhaps one
    before = place - 1
    while before >= 0 and kinds[before] & DIGIT:
        before -= 1
    return not (bare if before < 0 else kinds[before] & LINE)  # the number of a list's item


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
    inner = np.array([not each.edges for each in step.snapshots])[step.owners[lanes]]
    near = may_fork[step.owners[lanes]] & (hits >= step.first[lanes] + inner) & (hits < step.stop[lanes] - inner)
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
    """[hits] where a part ends by the rule of its request, the owner. In prose without numbers the token alone decides;
    everything else is for `boundaries`."""
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
            starts_of([len(snapshots[number].tokens) for number in hard])[:-1],
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


def starts_of(sizes: Sequence[int] | Ints) -> Longs:
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


class PredictedEnd(NamedTuple):
    """The absolute `position` at which the network is about to end an answer, which is number `at` of a result."""

    position: int
    at: int


def predicted_ends(spans: Sequence[EndSpan], ends: list[int], confidence: list[float]) -> dict[int, PredictedEnd]:
    """The first position at which the network is about to end each answer, by request id. `ends` [n] are the open
    positions of all `spans`, ascending, at which it proposes an end token with this `confidence` [n]."""
    found: dict[int, PredictedEnd] = {}
    start = at = 0
    for request_id, first, last, threshold in spans:
        stop = start + last - first
        while at < len(ends) and ends[at] < stop and request_id not in found:
            if confidence[at] >= threshold:
                found[request_id] = PredictedEnd(first + ends[at] - start, ends[at])
            at += 1
        start, at = stop, bisect_left(ends, stop, at)
    return found
