"""Records answers of the engine for a learnt rule: the input of its network as serving computes it, one token a
forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from ...scheduler.contract import Doubles, Floats, Ints
from ...scheduler.decoding.commit.base import CommitDecision, StepView
from ...scheduler.decoding.commit.host.learn2pd import Learn2PD
from ...scheduler.decoding.commit.host.tspd import TSPD
from ...scheduler.decoding.commit.shared.weights import LearntRule, Observed
from ...scheduler.decoding.params import Params
from .nets import Bools, Histories, Longs, Windows

UNKNOWN = -1  # no token


class Observations(NamedTuple):
    """The n proposals for open positions: the number of the `answer`, that of the forward (`call`), the `position` on
    the canvas, and whether the proposal was `right`: the token that came to stand there. The input `seen` [rows,
    columns] of the network has each at its `place` [n], as in `Observed`."""

    answer: Longs
    call: Longs
    position: Longs
    right: Bools
    place: Longs
    seen: Floats

    def where(self, chosen: Bools) -> Observations:
        """Those that are `chosen` [n]."""
        return Observations(*(column[chosen] for column in self[:-1]), self.seen)  # type: ignore[arg-type]

    def windows(self) -> Windows:
        return Windows.of(self.seen, self.place, self.right)

    def histories(self) -> Histories:
        order = np.lexsort((self.call, self.position, self.answer))
        answer, position = self.answer[order], self.position[order]
        begins = np.append(True, (np.diff(answer) != 0) | (np.diff(position) != 0))
        return Histories.of(self.seen[self.place[order]], begins, self.right[order])


class Step(NamedTuple):
    """One call of a rule: m proposals of the answers with these numbers, and what its network reads."""

    answers: Longs  # [m]
    calls: Longs  # [m]
    positions: Longs  # [m]
    tokens: Ints  # [m]
    place: Longs  # [m]
    seen: Floats


class Recordings:
    """Makes the rules of all requests, which are of one class, and keeps what they read."""

    def __init__(self, rule: type[Recording]) -> None:
        self.rule = rule
        self.finals: list[Ints] = []  # the canvas of each answer so far, `UNKNOWN` where no step has been
        self.steps: list[Step] = []

    def __call__(self, params: Params, length: int) -> Recording:
        return self.rule(params, length, self)

    def observations(self) -> Observations:
        """All proposals at positions that were filled. Answers have numbers without gaps, in the order in which they
        began; positions after an answer's end stay open."""
        answers, calls, positions, tokens = (np.concatenate(columns) for columns in list(zip(*self.steps))[:4])  # noqa: B905
        sizes = [len(step.seen) * self.rule.OUTPUTS for step in self.steps]
        offsets = np.cumsum(sizes) - sizes
        place = np.concatenate([step.place + offset for step, offset in zip(self.steps, offsets, strict=True)])
        seen = np.concatenate([step.seen for step in self.steps])
        starts = np.cumsum([0, *map(len, self.finals[:-1])])
        final = np.concatenate(self.finals)[starts[answers] + positions]
        _, numbers = np.unique(answers, return_inverse=True)
        found = Observations(numbers, calls, positions, tokens == final, place, seen)
        return found.where(final != UNKNOWN)


class Recording(LearntRule):
    """A learnt rule whose scores let nothing pass, so that only the surest position of an answer commits."""

    def __init__(self, params: Params, length: int, recordings: Recordings) -> None:
        super().__init__(params, length)
        self.recordings, self.number = recordings, len(recordings.finals)
        self.final = np.full(length, UNKNOWN, np.int32)
        recordings.finals.append(self.final)

    @classmethod
    def scores(cls, rules: Sequence[Self], view: StepView, observed: Observed) -> Doubles:
        at, owner = observed.at, view.requests.index[observed.at]
        numbers = np.array([rule.number for rule in rules])
        step = Step(
            numbers[owner], view.steps[owner], view.positions[at], view.tokens[at], observed.place, observed.seen
        )
        rules[0].recordings.steps.append(step)
        return np.full(len(at), -np.inf)

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        decision = super().choose(rules, view)  # type: ignore[safe-super]
        filled = np.where(decision.tokens == view.mask_id, UNKNOWN, decision.tokens)
        view.scatter([rule.final for rule in rules], filled.astype(np.int32))
        return decision


class RecordingFilter(Recording, Learn2PD):
    """Records Learn2PD's filter."""


class RecordingController(Recording, TSPD):
    """Records TSPD's controller."""
