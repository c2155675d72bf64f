"""Replays recorded calls in a closed loop: a day of load on a large GPU takes seconds on a laptop.

Every running request advances in every step. It replays the call that its problem's recording at the chosen length
made when as many tokens were committed, or the last one before. A request that ends makes place for the next problem.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ...scheduler.step_cost import Budget, StepCost
from .recordings import Call, Recording


@dataclass(frozen=True, slots=True)
class Advance:
    """A recorded call as a step needs it: positions computed and tokens committed."""

    positions: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Track:
    """A problem at one block length: tokens committed before each of its calls, the calls, and all its tokens."""

    before: tuple[int, ...]
    parts: tuple[Advance, ...]
    tokens: int

    @classmethod
    def of(cls, calls: Sequence[Call]) -> Track:
        parts = [Advance(call.end - call.start, len(call.committed)) for call in calls]
        ends = list(accumulate(part.tokens for part in parts))
        return cls((0, *ends[:-1]), tuple(parts), ends[-1])

    def part(self, done: int) -> tuple[Advance, int]:
        """Return the call of a request with `done` committed tokens, and the tokens that it adds: at least one.

        Tokens that the call commits again do not count, so that a change of length within an answer is never an
        advantage: counting whole calls made a random mixture of lengths up to a third faster than its parts.
        """
        number = bisect_right(self.before, done) - 1
        part = self.parts[number]
        return part, max(1, self.before[number] + part.tokens - done)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a load after the warm-up: simulated seconds, committed tokens, steps of each block length."""

    seconds: float
    tokens: int
    steps: dict[int, int]

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def mean_block_length(self) -> float:
        return sum(block_length * count for block_length, count in self.steps.items()) / sum(self.steps.values())


@dataclass(frozen=True, slots=True)
class Spell:
    """The length of a simulation: answers before measuring starts, and during it."""

    warm_up: int
    measured: int


class Loop:
    """A closed loop over the same problems, in the same order, at any load and setting."""

    def __init__(self, recordings: Sequence[Recording], cost: StepCost) -> None:
        self._cost = cost
        self._tracks = {r.block_length: tuple(Track.of(calls) for calls in r.answers) for r in recordings}
        self._problems = len(recordings[0].answers)

    @property
    def block_lengths(self) -> tuple[int, ...]:
        return tuple(self._tracks)

    def run(self, requests: int, setting: int | Budget, spell: Spell) -> Outcome:
        """Run `requests` at once, at a fixed block length or at those that a budget chooses and learns."""
        done, problem, admitted = [0] * requests, [n % self._problems for n in range(requests)], requests
        ended, seconds, tokens, steps = 0, 0.0, 0, dict.fromkeys(self._tracks, 0)
        while ended < spell.warm_up + spell.measured:
            counts = ended >= spell.warm_up
            block_length = setting if isinstance(setting, int) else setting.block_length(requests)
            tracks, positions, brought = self._tracks[block_length], 0, 0
            for place in range(requests):
                track = tracks[problem[place]]
                part, added = track.part(done[place])
                positions += part.positions
                brought += added
                done[place] += added
                if done[place] >= track.tokens:
                    ended += 1
                    done[place], problem[place], admitted = 0, admitted % self._problems, admitted + 1
            if not isinstance(setting, int):
                setting.observe(requests, positions, brought)
            if counts:
                seconds += self._cost(positions)
                tokens += brought
                steps[block_length] += 1
        return Outcome(seconds, tokens, steps)
