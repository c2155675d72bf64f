"""The cost of a step, and the choices that depend on it: the length of new blocks, prompt positions of a step, and one
or two steps in flight.

The time of a step over its positions is flat, then linear (`StepCost`): few requests take long blocks at no cost, many
pay for every position. `Budget` measures the effect of a length on the requests that run (`BlockYields`), prompts,
refreshes and settling included. A profile of commits by distance would need no trials, but it misleads: the positions
that a long block leaves open are the hard ones. Since answers then depend on load, this is only for requests with
block_length "auto".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .decoding.params import BLOCK_LENGTHS

LONGEST = BLOCK_LENGTHS[-1]
HALF_LIFE = 2000.0  # forwards at a block length after which earlier ones count half
EPOCH = 32  # steps between choices
SETTLING = 4  # steps after a change of the block length that still show the effect of the one before
ENOUGH = 500.0  # forwards that a block length needs before any choice: means are then within 3 %
TRIALS = 16  # one epoch in so many tries the block length with the fewest forwards
PAUSE = 1.7  # times that a gap between tokens is longer while a prompt comes in: p99 is then under twice the median
SHORT_PROMPT = 2048  # a prompt of at most so many positions takes few steps
SHORT_ROOM = 512  # positions of a step where all prompts are short: first tokens come late with fewer
LEAST_CHUNK = 128  # prompt positions of a step at least, or a prompt would take for ever where each position costs time
EFFICIENT = 1.1  # times the least cost of a position: larger steps gain no more
RENEWAL = 0.02  # share of the last step in what is known about the host's time
LEAST_SLACK_S = 0.0005  # the curve is not more exact
MARGIN = 0.02  # a faster block length must be so much faster: less is noise of the means


class StepCost:
    """Seconds of a step over its positions: measured points, and a straight line after the last. To these come
    `pair_s` for each pair of a position and a key that it sees beyond those of the points."""

    def __init__(self, tokens: Sequence[float], seconds: Sequence[float], pair_s: float = 0.0) -> None:
        """At least two points. Raises `ValueError` unless all are finite, `tokens` rise and `seconds` are above 0."""
        self._tokens, self._seconds = np.asarray(tokens, np.float64), np.asarray(seconds, np.float64)
        if self._tokens.ndim != 1 or self._tokens.shape != self._seconds.shape or len(self._tokens) < 2:
            raise ValueError("a cost curve needs at least two points, each of a token count and a time")
        if not (np.isfinite(self._tokens).all() and np.isfinite(self._seconds).all() and (self._seconds > 0).all()):
            raise ValueError("a cost curve needs finite numbers, and times above 0")
        if (np.diff(self._tokens) <= 0).any():
            raise ValueError("a cost curve needs at least two points of rising token counts")
        self.pair_s = pair_s
        # A curve that falls at its end is taken as flat there: no step takes less than none.
        self._slope = max(0.0, float(np.diff(self._seconds[-2:])[0] / np.diff(self._tokens[-2:])[0]))

    def __call__(self, tokens: float) -> float:
        """Seconds of a step of `tokens` positions."""
        beyond = max(0.0, tokens - float(self._tokens[-1]))
        return float(np.interp(tokens, self._tokens, self._seconds)) + beyond * self._slope


class Pacing:
    """Chooses how many prompt positions of a block-causal network a step computes, by what they cost the streams that
    run beside them."""

    def __init__(self, cost: StepCost, halving: Halving | None = None, block_size: int = 1) -> None:
        """Prompts are computed in whole blocks of `block_size` positions."""
        self._cost, self._halving, self._least = cost, halving, max(LEAST_CHUNK, block_size)
        self.short_prompt = SHORT_PROMPT
        sizes = [self._least << power for power in range(6)]
        best = min(cost(size) / size for size in sizes)
        self.alone = next(size for size in sizes if cost(size) / size <= EFFICIENT * best)  # where nobody else runs

    def room(self, work: int, keys: int, most: int) -> int:
        """The prompt positions, at most `most`, that go beside `work` positions of others and see about `keys` keys:
        so many that tokens come at most `PAUSE` times as late, but some at least."""
        if not work:
            return min(self.alone, most)
        limit = PAUSE * self._gap_s(work, 0.0)
        low, high = min(self._least, most), most
        while low < high:  # the largest that keeps within the limit
            chunk = (low + high + 1) // 2
            if self._gap_s(work + chunk, self._cost.pair_s * chunk * keys) <= limit:
                low = chunk
            else:
                high = chunk - 1
        return low

    def _gap_s(self, positions: int, more_s: float) -> float:
        """Seconds in which each stream gets a step, of `positions` in all."""
        if self._halving is not None and self._halving.pays(positions):
            return 2 * self._cost(positions / 2) + more_s
        return self._cost(positions) + more_s


class Halving:
    """Decides whether two steps of half the positions replace one. If they take hardly longer, the device computes one
    while the host is busy with the other, and never waits."""

    def __init__(self, cost: StepCost, slack_s: float = 0.002) -> None:
        """`slack_s`: the most that the second step may cost the device, until the host's time was observed."""
        self._cost, self._slack_s = cost, slack_s
        self._host_s, self._positions = 0.0, 0.0  # sums, of which earlier steps count less

    def observe(self, host_s: float, positions: int) -> None:
        """The host worked `host_s` seconds for a step of so many positions."""
        self._host_s = (1 - RENEWAL) * self._host_s + host_s
        self._positions = (1 - RENEWAL) * self._positions + positions

    def pays(self, positions: float) -> bool:
        """False where the second step costs the device more than it waits for the host otherwise, as where a step's
        time is flat."""
        slack_s = self._slack_s
        if self._positions:
            slack_s = max(LEAST_SLACK_S, positions * self._host_s / self._positions)
        return 2 * self._cost(positions / 2) <= self._cost(positions) + slack_s


class BlockYields:
    """The mean positions and commits of one forward at each block length. Old forwards count less."""

    def __init__(self) -> None:
        self._forwards = np.zeros(len(BLOCK_LENGTHS))
        self._sums = np.zeros((len(BLOCK_LENGTHS), 2))

    def observe(self, block_length: int, forwards: int, positions: float, commits: float) -> None:
        """`forwards` forwards at `block_length` together computed `positions` and committed `commits`."""
        at = BLOCK_LENGTHS.index(block_length)
        fade = 0.5 ** (forwards / HALF_LIFE)
        self._forwards[at] = self._forwards[at] * fade + forwards
        self._sums[at] = self._sums[at] * fade + (positions, commits)

    def known(self, block_length: int) -> float:
        """The number of forwards in the means."""
        return float(self._forwards[BLOCK_LENGTHS.index(block_length)])

    def expected(self, block_length: int) -> tuple[float, float]:
        """Positions and commits of a forward. Raises `ValueError` where nothing is known."""
        at = BLOCK_LENGTHS.index(block_length)
        if not self._forwards[at]:
            raise ValueError(f"no forward at block length {block_length} was seen")
        positions, commits = (self._sums[at] / self._forwards[at]).tolist()
        return positions, commits


class Budget:
    """Chooses the length of new blocks: every `EPOCH` steps the best one so far, now and then one to try."""

    def __init__(self, cost: StepCost) -> None:
        self.cost = cost
        self._length = self._best = LONGEST
        self._steps = 0  # since the last choice
        self._epochs = 0
        self._since_change = 0
        self.yields = BlockYields()

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
        """The step with the last `block_length` computed `positions` for `requests` requests, prompts and refreshes
        included, and committed `commits`."""
        self._steps, self._since_change = self._steps + 1, self._since_change + 1
        if self._since_change > SETTLING:
            self.yields.observe(self._length, requests, positions, commits)

    def _choose(self, requests: int) -> int:
        least = min(reversed(BLOCK_LENGTHS), key=self.yields.known)
        if self.yields.known(least) < ENOUGH or self._epochs % TRIALS == 0:
            return least

        def speed(block_length: int) -> float:
            positions, commits = self.yields.expected(block_length)
            return requests * commits / self.cost(requests * positions)

        fastest = max(BLOCK_LENGTHS, key=speed)
        if speed(fastest) > (1 + MARGIN) * speed(self._best):
            self._best = fastest
        return self._best
