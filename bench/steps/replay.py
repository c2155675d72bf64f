"""Replays recorded answers in a closed loop: a day of load on a large GPU takes seconds on a laptop.

Every running request advances in every step, by a forward of the answer that was recorded in its shape. All forwards of
an answer compute as many positions, but the first one has the prompt, too. A request that ends makes place for the next
problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...scheduler.decoding.params import LaneShape
from ...scheduler.step_cost import Budget, StepCost
from .recordings import Recording


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a load after the warm-up: simulated seconds, the tokens of answers that ended, and how many of them
    had each shape."""

    seconds: float
    tokens: int
    answers: dict[LaneShape, int]

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def usual(self) -> LaneShape:
        """The shape of most answers."""
        return max(self.answers, key=lambda shape: self.answers[shape])


@dataclass(frozen=True, slots=True)
class Spell:
    """The length of a simulation: answers before measuring starts, and during it."""

    warm_up: int
    measured: int


class Loop:
    """A closed loop over the same problems, in the same order, at any load and setting."""

    def __init__(self, recordings: Sequence[Recording], cost: StepCost) -> None:
        self._cost = cost
        self._recordings = {recording.shape: recording for recording in recordings}
        self._problems = len(recordings[0].answers)

    @property
    def shapes(self) -> tuple[LaneShape, ...]:
        return tuple(self._recordings)

    def run(self, requests: int, setting: LaneShape | Budget, spell: Spell) -> Outcome:
        """Run `requests` at once, with one shape or with those that a budget chooses and learns."""

        def begin() -> LaneShape:
            return setting.begin(requests) if isinstance(setting, Budget) else setting

        shapes = [begin() for _ in range(requests)]
        answers = [self._recordings[shape].answers[n % self._problems] for n, shape in enumerate(shapes)]
        forwards, admitted = [0] * requests, requests
        ended, seconds, tokens, counts = 0, 0.0, 0, dict.fromkeys(self._recordings, 0)
        while ended < spell.warm_up + spell.measured:
            measured, positions = ended >= spell.warm_up, 0.0
            for place, answer in enumerate(answers):
                positions += (answer.positions - answer.prompt) / answer.forwards
                positions += 0 if forwards[place] else answer.prompt
                forwards[place] += 1
                if forwards[place] < answer.forwards:
                    continue
                ended += 1
                if measured:
                    tokens += answer.tokens
                    counts[shapes[place]] += 1
                if isinstance(setting, Budget):
                    setting.end(shapes[place], answer)
                forwards[place], shapes[place] = 0, begin()
                answers[place] = self._recordings[shapes[place]].answers[admitted % self._problems]
                admitted += 1
            if measured:
                seconds += self._cost(positions)
        return Outcome(seconds, tokens, counts)
