"""The cost of a step, and the choices that depend on it: the shape of lanes, prompt positions of a step, and one or two
steps in flight.

The time of a step over its positions is flat, then linear (`StepCost`): few requests compute far ahead at no cost, many
pay for every position. `Budget` measures what answers of each shape take, prompts and settling included, and chooses
the shape that gives most tokens a second. It cannot see whether answers are right. Where forwards commit much of what
they compute, the look-ahead decides about answers and there is little to save, so narrow shapes are not tried there.
Since answers then depend on load, this is only for requests with block_length "auto".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .decoding.params import DEFAULT_SHAPE, NARROW_SHAPES, SHAPES, LaneShape

HALF_LIFE = 128.0  # answers of a shape after which earlier ones count half
ENOUGH = 64  # answers of a narrow shape that are begun before it is compared: means are then within some 4 %
TRUSTED = 32.0  # answers that a mean needs to be compared
MOSTLY_OPEN = 2 / 3  # narrow shapes are for texts of which so much of the default's positions stays open
TRIAL_SHARE = 0.002  # share of the time that trying one shape again may cost
LEAST_LOSS = 0.05  # a shape that costs less than so much more is tried no more often than one that does
PAUSE = 1.7  # times that a gap between tokens is longer while a prompt comes in: p99 is then under twice the median
SHORT_PROMPT = 2048  # a prompt of at most so many positions takes few steps
SHORT_ROOM = 512  # positions of a step where all prompts are short: first tokens come late with fewer
LEAST_CHUNK = 128  # prompt positions of a step at least, or a prompt would take for ever where each position costs time
EFFICIENT = 1.1  # times the least cost of a position: larger steps gain no more
RENEWAL = 0.02  # share of the last step in what is known about the host's time
LEAST_SLACK_S = 0.0005  # the curve is not more exact
MARGIN = 0.02  # a faster shape must be so much faster: less is noise of the means


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


class AnswerCost(NamedTuple):
    """The forwards of an answer, the positions that they computed, `prompt` ones among these, and its tokens, an end
    token included."""

    forwards: int
    positions: int
    prompt: int
    tokens: int

    @property
    def useful(self) -> int:
        """Positions that any shape computes: the prompt, and each token once as a mask and once as itself."""
        return min(self.positions, self.prompt + 2 * self.tokens)


class ShapeMeans:
    """The mean cost of answers of one shape. Old answers count less."""

    def __init__(self) -> None:
        self.answers = 0.0
        self._forwards = self._positions = self._useful = self._tokens = 0.0

    def observe(self, cost: AnswerCost) -> None:
        fade = 0.5 ** (1 / HALF_LIFE)
        self.answers = self.answers * fade + 1
        self._forwards = self._forwards * fade + cost.forwards
        self._positions = self._positions * fade + cost.positions
        self._useful = self._useful * fade + cost.useful
        self._tokens = self._tokens * fade + cost.tokens

    def rate(self, requests: int, cost: StepCost) -> float:
        """Tokens a second if `requests` at once have this shape. One answer at least must have been observed."""
        positions = requests * self._positions / self._forwards
        return requests * self._tokens / self._forwards / cost(positions)

    @property
    def open_share(self) -> float:
        """The share of computed positions that brought nothing, as those that stayed masks."""
        return 1 - self._useful / self._positions if self._positions else 0.0


class Budget:
    """Chooses the shape of each request with block_length "auto" as it is admitted, by the answers that have ended."""

    def __init__(self, cost: StepCost) -> None:
        self.cost = cost
        self.means = {shape: ShapeMeans() for shape in SHAPES}
        self.running = dict.fromkeys(SHAPES, 0)
        self._allowance = dict.fromkeys(SHAPES, 0.0)  # of trials
        self._best = DEFAULT_SHAPE

    def begin(self, requests: int) -> LaneShape:
        """The shape of a request that runs from now on, one of `requests`. Each must `end`."""
        shape = self._choose(requests)
        self.running[shape] += 1
        return shape

    def end(self, shape: LaneShape, cost: AnswerCost | None) -> None:
        """A request has ended, with an answer of this `cost`, or with none."""
        self.running[shape] -= 1
        if cost is not None and cost.forwards and cost.tokens:
            self.means[shape].observe(cost)

    def _choose(self, requests: int) -> LaneShape:
        default = self.means[DEFAULT_SHAPE]
        if default.answers < TRUSTED or default.open_share <= MOSTLY_OPEN:
            return DEFAULT_SHAPE
        for shape in NARROW_SHAPES:
            if self.means[shape].answers < TRUSTED and self.means[shape].answers + self.running[shape] < ENOUGH:
                return shape
        rates = {s: means.rate(requests, self.cost) for s, means in self.means.items() if means.answers >= TRUSTED}
        fastest = max(rates, key=lambda shape: rates[shape])
        if rates[fastest] > (1 + MARGIN) * rates[self._best]:
            self._best = fastest
        return self._trial(rates) or self._best

    def _trial(self, rates: Mapping[LaneShape, float]) -> LaneShape | None:
        """A shape other than the best whose turn it is to be tried again: each takes at most so much time that
        `TRIAL_SHARE` of all is lost by it."""
        for shape, rate in rates.items():
            self._allowance[shape] += TRIAL_SHARE
            if shape != self._best and self._allowance[shape] >= max(rates[self._best] / rate - 1, LEAST_LOSS):
                self._allowance[shape] = 0.0
                return shape
        return None
