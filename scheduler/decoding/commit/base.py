"""Second axis of a decoder: which positions commit in a step, and who decides it.

A rule that compares ranks and confidences within one lane becomes numbers that the device applies beside the logits
(`CommitRule`, in `device.py`). A rule that remembers, compares positions or takes tokens back is a `HostCommitRule`:
the device reports what it has found, and the host decides. One call decides for all requests of a step whose rules are
of one kind, so that its cost is that of a few operations on arrays.

`first` marks a lane that must commit something in every step: the leftmost lane of a request, and others that its lane
policy marks (`Lane.active`). Lanes after it commit only what passes, because their tokens depend on what is still open
before them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from ...contract import DeviceCommitRule, Doubles, Floats, Ints, Measure
from ..lane_tree import Lane, LaneTree, Layout, Role
from ..params import Params, Values
from .segments import NONE, Array, Bools, Longs, Segments, whole_rows

Rule = TypeVar("Rule")


class CommitRule(Protocol):
    """The device's rule of each lane in the next step."""

    def for_lane(self, lane: Lane, first: bool) -> DeviceCommitRule: ...


class Ranges:
    """The `slices` [r] of the canvases of r requests from their first to their last position in a step, and the
    indices `inside` [n] of the positions among all that the slices have, or None if these are the same."""

    def __init__(self, slices: Sequence[slice], inside: Longs | None) -> None:
        self.slices, self.inside = slices, inside

    @classmethod
    def of(cls, positions: Longs, requests: Segments) -> Self:
        """Those of the `positions` [n] of `requests`."""
        first, last = positions[requests.starts], positions[requests.ends - 1]
        slices = [slice(*bounds) for bounds in zip(first.tolist(), (last + 1).tolist(), strict=True)]
        sizes = last + 1 - first
        if sizes.sum() == len(positions):
            return cls(slices, None)
        return cls(slices, positions + np.repeat(np.cumsum(sizes) - sizes - first, requests.sizes))

    def part(self, number: int, positions: Longs) -> Ranges:
        """The range of one request, which has these `positions` [n]."""
        own = self.slices[number]
        return Ranges([own], None if own.stop - own.start == len(positions) else positions - own.start)

    def gather(self, kept: Sequence[Array]) -> Array:
        """[n, ...] of arrays [r] by canvas position."""
        found = np.concatenate([array[here] for array, here in zip(kept, self.slices, strict=True)])
        return found if self.inside is None else found.take(self.inside, axis=0)

    def scatter(self, kept: Sequence[Array], values: Array) -> None:
        """Set the positions of arrays [r] to `values` [n, ...]."""
        if self.inside is not None:
            found = np.concatenate([array[here] for array, here in zip(kept, self.slices, strict=True)])
            whole_rows(found)[self.inside] = whole_rows(values)
            values = found
        end = 0
        for array, here in zip(kept, self.slices, strict=True):
            start, end = end, end + here.stop - here.start
            array[here] = values[start:end]


class Lanes(Segments):
    """The parts of a step's positions that belong to live `lanes` [s], of which each request has one or more. `owner`
    [s] is the number of its request, `forced` [s] is true of a `first` lane."""

    def __init__(
        self, lanes: Sequence[Lane], bounds: tuple[Longs, Longs], owner: Longs, forced: Bools, size: int
    ) -> None:
        super().__init__(*bounds, size)
        self.lanes, self.owner, self.forced = lanes, owner, forced

    def of(self, request: int, start: int, size: int) -> Lanes:
        """The lanes of one request, whose `size` positions begin at `start`."""
        first, last = bisect_left(self._owners, request), bisect_left(self._owners, request + 1)
        bounds = self.starts[first:last] - start, self.ends[first:last] - start
        return Lanes(self.lanes[first:last], bounds, self.owner[first:last] - request, self.forced[first:last], size)

    @cached_property
    def _owners(self) -> list[int]:
        found: list[int] = self.owner.tolist()
        return found

    def owners(self, rules: Sequence[Rule]) -> list[Rule]:
        """[s] the one of `rules` [r] that each lane belongs to."""
        return [rules[number] for number in self._owners]

    @cached_property
    def leftmost(self) -> Bools:
        """[s] true of the first lane of each request."""
        return np.diff(self.owner, prepend=-1) > 0

    @cached_property
    def steps(self) -> Longs:
        """[s] the forwards of each lane so far."""
        return np.array([lane.steps for lane in self.lanes], np.intp)

    @cached_property
    def refine(self) -> Bools:
        """[s] true of refine lanes."""
        return np.array([lane.role is Role.REFINE for lane in self.lanes], np.bool_)


class CommitDecision(NamedTuple):
    """The canvases at the positions of a step from now on: `tokens` [n], the mask id where open. With an `end` in
    `ends` [r] an answer ends at this canvas position, which may be open still. Full lanes of a request that `stays` [r]
    do not end yet."""

    tokens: Ints
    ends: Sequence[int | None] | None = None
    stays: Bools | None = None


class Replica(NamedTuple):
    """A second row of the leftmost lane, placed after the canvas: `tokens` [n] at the lane's n positions.

    It sees all that the lane sees and the replicas before it, except that each position does not see its own place in
    stretch `hidden_in`: 0 is the lane, 1 its first replica. Logits are computed if it is `projected`.
    """

    tokens: Ints
    hidden_in: int = 0
    projected: bool = True


class ReplicaView(NamedTuple):
    """The network's output at the projected replicas of the leftmost lanes. Where `there` [n] is false there is none,
    and the rest means nothing."""

    there: Bools
    proposals: Ints  # [n]
    ranked: Ints  # [n, ranks]
    logprobs: Floats  # [n, ranks]

    def probability(self, tokens: Ints) -> Doubles:
        """The probability [n] of `tokens` [n]; 0 for a token that is not among the likeliest."""
        row, rank = np.nonzero(self.ranked == tokens[:, None])
        found = np.zeros(len(tokens))
        found[row] = np.exp(self.logprobs[row, rank].astype(np.float64))
        return found


NO_SCORES: Floats = np.zeros(0, np.float32)
NO_FREQUENCIES: Doubles = np.zeros(0)


@dataclass(frozen=True, eq=False)
class StepView:
    """The output of a step at the n projected positions of r requests, one request after another. The positions of each
    are its live lanes, and after them the look-ahead if the rule `sees_ahead`, which belongs to no lane."""

    canvases: Sequence[Ints]  # [r] before the step, the mask id where open
    mask_id: int
    positions: Longs  # [n] on each canvas, ascending
    ranges: Ranges
    canvas_tokens: Ints  # [n] the canvases at `positions`
    tokens: Ints  # [n] what may commit where a canvas is open; elsewhere what the network proposes instead
    confidence: Doubles  # [n] probability of `tokens`
    entropy: Doubles  # [n] nats; infinite where `tokens` replaces an end token; NaN if the rule's measure is SINGLE
    ranked: Ints  # [n, ranks] the likeliest tokens, best first
    logprobs: Floats  # [n, ranks] of `ranked`
    requests: Segments  # [r]
    lanes: Lanes
    ends: Bools  # [vocabulary] which tokens end an answer
    steps: Longs  # [r] forwards of each request before this one
    controls: tuple[int, int] | None = None  # tokens that delete their position, and that open one before it
    replica: ReplicaView | None = None  # if there is a projected replica
    frequencies: Doubles = field(default_factory=lambda: NO_FREQUENCIES)  # [vocabulary] of tokens; or nothing is known
    rescored: Floats = field(default_factory=lambda: NO_SCORES)  # [n] log-probability of the canvas, with `rescores`

    @cached_property
    def open(self) -> Bools:
        """[n] where a canvas has the mask, read-only."""
        found: Bools = self.canvas_tokens == self.mask_id
        found.flags.writeable = False  # rules read it again and again
        return found

    def each(self, values: Array | Sequence[object]) -> Array:
        """[n] the value [r] of the request that each position belongs to."""
        return np.repeat(np.asarray(values), self.requests.sizes)

    def gather(self, kept: Sequence[Array]) -> Array:
        """[n, ...] of arrays [r] by canvas position: what each request has `kept` at the positions of this step."""
        return self.ranges.gather(kept)

    def scatter(self, kept: Sequence[Array], values: Array) -> None:
        """Set what each request has `kept` at the positions of this step to `values` [n, ...]."""
        self.ranges.scatter(kept, values)

    def commit(self, chosen: Bools, tokens: Ints | None = None) -> CommitDecision:
        """Commit at the positions that are `chosen` [n] and open: `tokens` [n], by default those of the view."""
        committed = self.tokens if tokens is None else tokens
        return CommitDecision(np.where(chosen & self.open, committed, self.canvas_tokens))

    def at_least(self, score: Doubles, threshold: Doubles | float, otherwise: Doubles | None = None) -> Bools:
        """[n] the open positions of lanes with a `score` [n] of at least `threshold` [n]. In a `first` lane without
        one, the best position by `otherwise` [n], by default `score`; the leftmost of equals."""
        lanes = self.lanes
        chosen: Bools = self.open & (score >= threshold) & lanes.inside
        without = lanes.forced & ~lanes.any(chosen)
        if without.any():
            found = lanes.best(score if otherwise is None else otherwise, self.open)[without]
            chosen[found[found != NONE]] = True
        return chosen

    def rows(self, numbers: range) -> slice:
        """The positions of some requests, one after another."""
        return slice(int(self.requests.starts[numbers.start]), int(self.requests.ends[numbers.stop - 1]))

    def part(self, number: int) -> StepView:
        """The view of one request."""
        start, end = int(self.requests.starts[number]), int(self.requests.ends[number])
        here, size = slice(start, end), end - start
        return StepView(
            canvases=[self.canvases[number]],
            mask_id=self.mask_id,
            ranges=self.ranges.part(number, self.positions[here]),
            positions=self.positions[here],
            canvas_tokens=self.canvas_tokens[here],
            tokens=self.tokens[here],
            confidence=self.confidence[here],
            entropy=self.entropy[here],
            ranked=self.ranked[here],
            logprobs=self.logprobs[here],
            requests=Segments(self.requests.starts[number : number + 1] - start, np.array([size]), size),
            lanes=self.lanes.of(number, start, size),
            ends=self.ends,
            controls=self.controls,
            steps=self.steps[number : number + 1],
            frequencies=self.frequencies,
            rescored=self.rescored[here],
        )


def best(score: Doubles, among: Bools) -> int:
    """The index of the best `score` [n] where `among` [n]; the leftmost of equals."""
    places = np.flatnonzero(among)
    return int(places[score[places].argmax()])


def top(score: Doubles, among: Bools, count: int | None = None) -> Longs:
    """The indices of the `count` best `score` [n] where `among` [n], best first, the leftmost of equals first; all of
    them if there are fewer, or without a `count`."""
    places = np.flatnonzero(among)
    return places[np.argsort(-score[places], kind="stable")[:count]]


class HostCommitRule(ABC):
    """Decides what commits. One file for each, and one entry in `commit.HOST_RULES`.

    Each request has an object of its own, with its parameters and its state; `choose` decides for many. State is kept
    by canvas position, so nothing has to be done when lanes fork or end. The class says what the table of decoders has
    to know; the constructor takes checked parameters and the length of the canvas.
    """

    NAME: ClassVar[str]
    SOURCE: ClassVar[str]  # paper and code
    DEFAULTS: ClassVar[Mapping[str, object]]  # its parameters
    PARAMS: ClassVar[Mapping[str, Values]] = {}  # values of those parameters that `params.PARAMS` does not have

    layout: ClassVar[Layout] = Layout.PACKED
    rows_param: ClassVar[str] = ""  # the parameter that counts its rows in a step, if it has several
    scored: ClassVar[bool] = True  # the probability of each token in the step that committed it is known

    ranks: int = 0  # likeliest tokens that it reads of each position
    measure: Measure = Measure.ENTROPY  # beside probabilities; with SINGLE probabilities are rounded to float32
    revises: bool = False  # may change or take back committed tokens while their lane lives
    sees_ahead: bool = False  # reads the look-ahead after the lanes, and may commit there
    replica_count: int = 0  # at most
    grows: bool = False  # decides how long the canvas is, up to its length
    weighs_tokens: bool = False  # reads how frequent tokens are
    reads_proposals: bool = False  # also where the device's canvas has a token
    rescores: bool = False  # reads the log-probability of committed tokens in each forward

    def __init__(self, params: Params, length: int) -> None: ...  # noqa: B027

    @property
    def canvas_end(self) -> int:
        """The positions that a step computes and sees, of a rule that `grows`."""
        raise TypeError(f"{self.NAME!r} does not decide how long the canvas is")

    def resize(self, tree: LaneTree) -> int:
        """Set what follows the positions in which lanes may be, of a rule that `grows`. Return how many these are."""
        raise TypeError(f"{self.NAME!r} does not decide how long the canvas is")

    def replicas(self, lane: Lane, mask_id: int) -> tuple[Replica, ...]:
        """The replicas of the leftmost lane in the next step, at most one of them projected. Changes no state."""
        return ()

    @property
    def kind(self) -> Hashable:
        """The parameters that are the same for all requests of one call."""
        return ()

    @classmethod
    @abstractmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        """The decisions of `rules` [r] after a step. State changes last, after all that may raise: then the call is
        repeated for each request alone, and only the one that raises again ends."""


EVERYTHING = 1 << 30  # positions, more than any request has

# All may commit, so the device reports all its proposals. The next step's rows carry what did commit.
REPORT_ALL = DeviceCommitRule(sure=EVERYTHING, threshold=-math.inf, measure=Measure.ENTROPY)


@dataclass(frozen=True, slots=True)
class HostDecides:
    """The device's half of every host rule."""

    reports: DeviceCommitRule = REPORT_ALL

    def for_lane(self, lane: Lane, first: bool) -> DeviceCommitRule:
        return self.reports
