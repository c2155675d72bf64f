"""Second axis of a decoder: which positions commit in a step, and who decides it.

`first` marks the leftmost lane of a request: it must commit something in every step; lanes behind it commit only what
passes, because later sentences depend on numbers that are still open before them. A policy may mark more of them
(`Lane.active`). A rule that asks no more than ranks and thresholds within a lane is a `DeviceCommitRule`,
which the device applies beside the logits. One that remembers, compares positions or takes tokens back is a
`HostCommitRule`: the device reports what it sees, and the host decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ...contract import DeviceCommitRule, Doubles, Ints, Measure
from ..lane_tree import Lane, Role

Bools = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.intp]


class CommitRule(Protocol):
    def for_lane(self, lane: Lane, first: bool) -> DeviceCommitRule: ...


class LaneSlice(NamedTuple):
    """The stretch `here` of a step's positions that belongs to a live lane."""

    lane: Lane
    here: slice
    first: bool


class CommitDecision(NamedTuple):
    """What stands at the positions of a step from now on, `tokens` [n], the mask id where nothing does; `end`: the
    answer is cut behind this canvas position, which stays open if it is. With `stays` lanes that are full do not end
    yet."""

    tokens: Ints
    end: int | None = None
    stays: bool = False


class Replica(NamedTuple):
    """A row that stands in for the leftmost lane, behind the canvas: `tokens` [n] at the places of the lane's. It sees
    all before it, but each of its positions not itself in stretch `hides`: the lane is 0, its first shadow 1. `asked`:
    whether the network is asked what it says there."""

    tokens: Ints
    hidden_in: int = 0
    projected: bool = True


class ReplicaView(NamedTuple):
    """What the network says where a shadow of the leftmost lane was asked."""

    proposals: Ints  # [n]
    confidence: Doubles  # [n]
    ranked: Ints  # [n, ranks]
    logprobs: Doubles  # [n, ranks]

    def probability(self, tokens: Ints) -> Doubles:
        """[n] of these; 0 for one that is not among the likeliest."""
        here: Doubles = np.where(self.ranked == tokens[:, None], np.exp(self.logprobs), 0.0).sum(axis=1)
        return here


@dataclass(frozen=True, slots=True)
class StepView:
    """What a step shows of the n positions of one request that it projected: its live lanes, and the look-ahead behind
    them if the rule asks for it, which belongs to no part."""

    canvas: Ints  # [length] as the step found it, the mask id where open
    mask_id: int
    positions: Ints  # [n] on the canvas, ascending
    tokens: Ints  # [n] what may commit where the canvas is open; elsewhere what the network proposes instead
    confidence: Doubles  # [n] probability of `tokens`
    entropy: Doubles  # [n] nats; infinite where `tokens` stands in for an end token; NaN if the judge goes by SINGLE
    ranked: Ints  # [n, ranks] the likeliest tokens in falling order
    logprobs: Doubles  # [n, ranks] theirs
    lane_slices: tuple[LaneSlice, ...]  # one behind the other, from the first position on
    ends: Bools  # [vocabulary] which tokens end an answer
    step: int  # calls of the request before this one
    replica: ReplicaView | None = None  # if the rule has asked for one
    prompt: int = 0  # tokens before the canvas
    canvas_tokens: Ints = field(init=False)  # [n] what the canvas holds, read-only
    open: Bools = field(init=False)  # [n] where it holds the mask, read-only

    def __post_init__(self) -> None:
        held = self.canvas[self.positions]
        for name, found in (("canvas_tokens", held), ("open", held == self.mask_id)):
            found.flags.writeable = False  # they are asked for again and again
            object.__setattr__(self, name, found)

    @property
    def lanes(self) -> slice:
        """All parts; what is behind them is look-ahead."""
        return slice(0, self.lane_slices[-1].here.stop)

    @property
    def may_end(self) -> Bools:
        """[n] where an end token may commit: not in refine lanes."""
        free = np.ones(len(self.positions), np.bool_)
        for part in self.lane_slices:
            free[part.here] = part.lane.role is Role.GENERATE
        return free

    def commit(self, chosen: Bools, tokens: Ints | None = None) -> CommitDecision:
        """`tokens` [n], or those that the device would commit, do where `chosen` [n] and open."""
        return CommitDecision(
            np.where(chosen & self.open, self.tokens if tokens is None else tokens, self.canvas_tokens)
        )

    def at_least(self, score: Doubles, threshold: float, otherwise: Doubles | None = None) -> Bools:
        """[n] the open positions of lanes with a `score` [n] of `threshold` or more; if none of the first lane has, its
        best by `score`, or by what counts `otherwise` [n], the leftmost of equals."""
        chosen: Bools = self.open & (score >= threshold)
        chosen[self.lanes.stop :] = False
        fallback = score if otherwise is None else otherwise
        for part in self.lane_slices:
            here = part.here
            if part.first and not chosen[here].any() and self.open[here].any():
                chosen[here.start + best(fallback[here], self.open[here])] = True
        return chosen


def best(score: Doubles, among: Bools) -> int:
    """Where the best `score` [n] is `among` [n] these, the leftmost of equals."""
    places = np.flatnonzero(among)
    return int(places[score[places].argmax()])


def top(score: Doubles, among: Bools, count: int | None = None) -> Longs:
    """Where the `count` best `score` [n] are `among` [n] these, the best first and the leftmost of equals; all of them
    if there are no more, or without a `count`."""
    places = np.flatnonzero(among)
    return places[np.argsort(-score[places], kind="stable")[:count]]


class HostCommitRule(Protocol):
    """Decides for one request. Memory is kept by canvas position, so lanes that split or end need nothing done."""

    @property
    def ranks(self) -> int:
        """How many likeliest tokens it must be told."""
        ...

    @property
    def measure(self) -> Measure:
        """ENTROPY, which it is told beside probabilities; or SINGLE, which its probabilities then are."""
        ...

    @property
    def revises(self) -> bool:
        """Whether it may take back or change what has committed, as long as its lane lives."""
        ...

    @property
    def sees_ahead(self) -> bool:
        """Whether it must see the look-ahead behind the lanes, in which it may commit too."""
        ...

    @property
    def replica_count(self) -> int:
        """How many shadows of a lane it may ask for."""
        ...

    def replicas(self, lane: Lane, mask_id: int) -> tuple[Replica, ...]:
        """Those of the leftmost lane that the next step computes; one of them may be asked. Changes nothing."""
        ...

    def choose(self, view: StepView) -> CommitDecision: ...


class HostRuleDefaults:
    """What most judges answer."""

    ranks = 0
    measure = Measure.ENTROPY
    revises = False
    sees_ahead = False
    replica_count = 0

    def replicas(self, lane: Lane, mask_id: int) -> tuple[Replica, ...]:
        return ()


EVERYTHING = 1 << 30  # positions, more than any request has

# All may commit, so that the device tells what would; what does, the host tells it in the next step.
REPORT_ALL = DeviceCommitRule(sure=EVERYTHING, threshold=-math.inf, measure=Measure.ENTROPY)


@dataclass(frozen=True, slots=True)
class HostDecides:
    """The device's half of every judge."""

    reports: DeviceCommitRule = REPORT_ALL

    def for_lane(self, lane: Lane, first: bool) -> DeviceCommitRule:
        return self.reports
