"""How long new blocks are, so that a step brings the most tokens for its time.

A step's time over its positions is flat, then linear (`StepCost`): few requests take long blocks for nothing, many pay
for every position. What a length brings and costs is measured on the spot (`Yields`), prompts, refreshes and settling
included: a profile of commits by distance would need no trials, but misleads, since positions that a long block leaves
open are the hard ones.

This makes answers depend on load, so it is only for requests that ask for it (knob `block_length: "auto"`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .decoding.params import BLOCK_LENGTHS

LONGEST = BLOCK_LENGTHS[-1]
HALF_LIFE = 2000.0  # calls at a block length after which what was learnt before counts half
EPOCH = 32  # steps between choices
SETTLING = 4  # steps behind a change of the block length that show what the one before left, and teach nothing
ENOUGH = 500.0  # calls at a block length, below which it is tried before any choice: means are then within 3 %
TRIALS = 16  # one epoch in so many goes to the block length that is known least
MARGIN = 0.02  # a block length gives way only to one that is faster by this share: less is noise of the means


class StepCost:
    """Seconds of a step over its positions, through measured points and on in a straight line."""

    def __init__(self, tokens: Sequence[float], seconds: Sequence[float]) -> None:
        """Two points [n] at least; raises `ValueError` unless there is a time for each, all are finite, `tokens` rise
        and `seconds` are above 0."""
        self._tokens, self._seconds = np.asarray(tokens, np.float64), np.asarray(seconds, np.float64)
        if self._tokens.ndim != 1 or self._tokens.shape != self._seconds.shape or len(self._tokens) < 2:
            raise ValueError("a cost curve needs at least two points, each of a token count and a time")
        if not (np.isfinite(self._tokens).all() and np.isfinite(self._seconds).all() and (self._seconds > 0).all()):
            raise ValueError("a cost curve needs finite numbers, and times above 0")
        if (np.diff(self._tokens) <= 0).any():
            raise ValueError("a cost curve needs at least two points of rising token counts")
        # A curve that was measured to fall at its end is taken as flat there: no step takes less than none.
        self._slope = max(0.0, float(np.diff(self._seconds[-2:])[0] / np.diff(self._tokens[-2:])[0]))

    def __call__(self, tokens: float) -> float:
        """Seconds of a step of `tokens` positions."""
        beyond = max(0.0, tokens - float(self._tokens[-1]))
        return float(np.interp(tokens, self._tokens, self._seconds)) + beyond * self._slope


@dataclass(frozen=True, slots=True)
class Halving:
    """Whether two steps of half the positions take hardly longer than one of all: then one can be computed while the
    host is busy with the other, and the device never waits."""

    cost: StepCost
    slack_s: float = 0.002  # what the second step may cost the device: about what the host spends on one

    def pays(self, positions: float) -> bool:
        """Where a step's time is flat it does not."""
        return 2 * self.cost(positions / 2) <= self.cost(positions) + self.slack_s


class Yields:
    """What a call of one request brings at each block_length: positions and commits, means that forget."""

    def __init__(self) -> None:
        self._calls = np.zeros(len(BLOCK_LENGTHS))
        self._sums = np.zeros((len(BLOCK_LENGTHS), 2))

    def observe(self, block_length: int, calls: int, positions: float, commits: float) -> None:
        """`calls` calls at `block_length` computed `positions` and committed `commits`, together."""
        at = BLOCK_LENGTHS.index(block_length)
        fade = 0.5 ** (calls / HALF_LIFE)
        self._calls[at] = self._calls[at] * fade + calls
        self._sums[at] = self._sums[at] * fade + (positions, commits)

    def known(self, block_length: int) -> float:
        """Calls that the means rest on."""
        return float(self._calls[BLOCK_LENGTHS.index(block_length)])

    def expected(self, block_length: int) -> tuple[float, float]:
        """Positions and commits of a call. Raises `ValueError` where nothing is known."""
        at = BLOCK_LENGTHS.index(block_length)
        if not self._calls[at]:
            raise ValueError(f"no call at block length {block_length} was seen")
        positions, commits = (self._sums[at] / self._calls[at]).tolist()
        return positions, commits


class Budget:
    """Chooses the length of new blocks: every `EPOCH` steps the best that is known, now and then one to learn of it."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._length = self._best = LONGEST
        self._steps = 0  # since the last choice
        self._epochs = 0
        self._since_change = 0
        self.yields = Yields()

    def block_length(self, requests: int) -> int:
        """The block length of a step for `requests` running requests that adapt to the load."""
        if self._steps >= EPOCH:
            self._steps, self._epochs = 0, self._epochs + 1
            chosen = self._choose(requests)
            if chosen != self._length:
                self._since_change = 0
            self._length = chosen
        return self._length

    def observe(self, requests: int, positions: int, commits: int) -> None:
        """The step whose block length was asked for last computed `positions` for `requests` requests, prompts and
        refreshes included, and committed `commits`."""
        self._steps, self._since_change = self._steps + 1, self._since_change + 1
        if self._since_change > SETTLING:
            self.yields.observe(self._length, requests, positions, commits)

    def _choose(self, requests: int) -> int:
        least = min(reversed(BLOCK_LENGTHS), key=self.yields.known)
        if self.yields.known(least) < ENOUGH or self._epochs % TRIALS == 0:
            return least

        def speed(block_length: int) -> float:
            positions, commits = self.yields.expected(block_length)
            return requests * commits / self._cost(requests * positions)

        fastest = max(BLOCK_LENGTHS, key=speed)
        if speed(fastest) > (1 + MARGIN) * speed(self._best):
            self._best = fastest
        return self._best
