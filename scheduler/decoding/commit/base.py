"""Second axis of a decoder: which positions commit in a step, and who decides it.

A rule that compares ranks and confidences within one lane becomes numbers that the device applies beside the logits
(`CommitRule`, in `device.py`). A rule that remembers, compares positions or takes tokens back is a `HostCommitRule`:
the device reports what it has found, and the host decides.

`first` marks a lane that must commit something in every step: the leftmost lane of a request, and others that its lane
policy marks (`Lane.active`). Lanes after it commit only what passes, because their tokens depend on what is still open
before them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ...contract import DeviceCommitRule, Doubles, Ints, Measure
from ..lane_tree import Lane, Layout, Role
from ..params import Params, Values

Bools = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.intp]


class CommitRule(Protocol):
    """The device's rule of each lane in the next step."""

    def for_lane(self, lane: Lane, first: bool) -> DeviceCommitRule: ...


class LaneSlice(NamedTuple):
    """The slice `here` of a step's positions that belongs to a live lane."""

    lane: Lane
    here: slice
    first: bool


class CommitDecision(NamedTuple):
    """The canvas at the positions of a step from now on: `tokens` [n], the mask id where open. With an `end` the answer
    ends at this canvas position, which may be open still. With `stays` full lanes do not end yet."""

    tokens: Ints
    end: int | None = None
    stays: bool = False


class Replica(NamedTuple):
    """A second row of the leftmost lane, placed after the canvas: `tokens` [n] at the lane's n positions.

    It sees all that the lane sees and the replicas before it, except that each position does not see its own place in
    stretch `hidden_in`: 0 is the lane, 1 its first replica. Logits are computed if it is `projected`.
    """

    tokens: Ints
    hidden_in: int = 0
    projected: bool = True


class ReplicaView(NamedTuple):
    """The network's output at the projected replica of the leftmost lane."""

    proposals: Ints  # [n]
    confidence: Doubles  # [n]
    ranked: Ints  # [n, ranks]
    logprobs: Doubles  # [n, ranks]

    def probability(self, tokens: Ints) -> Doubles:
        """The probability [n] of `tokens` [n]; 0 for a token that is not among the likeliest."""
        here: Doubles = np.where(self.ranked == tokens[:, None], np.exp(self.logprobs), 0.0).sum(axis=1)
        return here


@dataclass(frozen=True, slots=True)
class StepView:
    """The output of a step at the n projected positions of a request: its live lanes, and after them the look-ahead if
    the rule `sees_ahead`, which belongs to no lane."""

    canvas: Ints  # [length] before the step, the mask id where open
    mask_id: int
    positions: Ints  # [n] on the canvas, ascending
    tokens: Ints  # [n] what may commit where the canvas is open; elsewhere what the network proposes instead
    confidence: Doubles  # [n] probability of `tokens`
    entropy: Doubles  # [n] nats; infinite where `tokens` replaces an end token; NaN if the rule's measure is SINGLE
    ranked: Ints  # [n, ranks] the likeliest tokens, best first
    logprobs: Doubles  # [n, ranks] of `ranked`
    lane_slices: tuple[LaneSlice, ...]  # in order, from the first position on
    ends: Bools  # [vocabulary] which tokens end an answer
    step: int  # forwards of the request before this one
    replica: ReplicaView | None = None  # if the rule has a projected replica
    canvas_tokens: Ints = field(init=False)  # [n] the canvas at `positions`, read-only
    open: Bools = field(init=False)  # [n] where the canvas has the mask, read-only

    def __post_init__(self) -> None:
        tokens = self.canvas[self.positions]
        for name, found in (("canvas_tokens", tokens), ("open", tokens == self.mask_id)):
            found.flags.writeable = False  # rules read them again and again
            object.__setattr__(self, name, found)

    @property
    def lanes(self) -> slice:
        """The positions of all lanes; the rest is look-ahead."""
        return slice(0, self.lane_slices[-1].here.stop)

    @property
    def may_end(self) -> Bools:
        """[n] where an end token may commit: not in refine lanes."""
        free = np.ones(len(self.positions), np.bool_)
        for lane, here, _ in self.lane_slices:
            free[here] = lane.role is Role.GENERATE
        return free

    def nothing(self) -> Bools:
        """[n] false everywhere."""
        return np.zeros(len(self.positions), np.bool_)

    def commit(self, chosen: Bools, tokens: Ints | None = None) -> CommitDecision:
        """Commit at the positions that are `chosen` [n] and open: `tokens` [n], by default those of the view."""
        committed = self.tokens if tokens is None else tokens
        return CommitDecision(np.where(chosen & self.open, committed, self.canvas_tokens))

    def at_least(self, score: Doubles, threshold: float, otherwise: Doubles | None = None) -> Bools:
        """[n] the open positions of lanes with a `score` [n] of at least `threshold`. In a `first` lane without one,
        the best position by `otherwise` [n], by default `score`; the leftmost of equals."""
        chosen: Bools = self.open & (score >= threshold)
        chosen[self.lanes.stop :] = False
        fallback = score if otherwise is None else otherwise
        for _, here, first in self.lane_slices:
            if first and not chosen[here].any() and self.open[here].any():
                chosen[here.start + best(fallback[here], self.open[here])] = True
        return chosen


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
    """Decides for one request what commits. One file for each, and one entry in `commit.HOST_RULES`.

    State is kept by canvas position, so nothing has to be done when lanes fork or end. The class says what the table of
    decoders has to know; the constructor takes checked parameters and the length of the canvas.
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

    def __init__(self, params: Params, length: int) -> None: ...  # noqa: B027

    def replicas(self, lane: Lane, mask_id: int) -> tuple[Replica, ...]:
        """The replicas of the leftmost lane in the next step, at most one of them projected. Changes no state."""
        return ()

    @abstractmethod
    def choose(self, view: StepView) -> CommitDecision:
        """The decision after a step."""


EVERYTHING = 1 << 30  # positions, more than any request has

# All may commit, so the device reports all its proposals. The next step's rows carry what did commit.
REPORT_ALL = DeviceCommitRule(sure=EVERYTHING, threshold=-math.inf, measure=Measure.ENTROPY)


@dataclass(frozen=True, slots=True)
class HostDecides:
    """The device's half of every host rule."""

    reports: DeviceCommitRule = REPORT_ALL

    def for_lane(self, lane: Lane, first: bool) -> DeviceCommitRule:
        return self.reports
