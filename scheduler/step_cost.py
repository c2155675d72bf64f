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


class StepSize(NamedTuple):
    """The positions that a step computes, and those among them that a drafter does."""

    tokens: int = 0
    drafted: int = 0

    def plus(self, other: StepSize, times: int = 1) -> StepSize:
        return StepSize(self.tokens + times * other.tokens, self.drafted + times * other.drafted)

    def reaching(self, other: StepSize) -> StepSize:
        """This size, and one more position of each network that has some in `other` and none here."""
        served = self.tokens == self.drafted and other.tokens > other.drafted
        drafter = not self.drafted and other.drafted > 0
        return self.plus(StepSize(served + drafter, int(drafter)))


PROMPT_POSITION = StepSize(1)
PROMPT_POSITION_OF_BOTH = StepSize(2, 1)  # the served network and the drafter compute it


class StepCost:
    """Seconds of a step over its positions: measured points, and a straight line after the last. To these come
    `pair_s` for each pair of a position and a key that it sees beyond those of the points. A `drafter` has a curve of
    its own; the two networks compute one after the other, and one that has no position in a step takes no time."""

    def __init__(
        self,
        tokens: Sequence[float],
        seconds: Sequence[float],
        pair_s: float = 0.0,
        drafter: StepCost | None = None,
    ) -> None:
        """At least two points. Raises `ValueError` unless all are finite, `tokens` rise and `seconds` are above 0."""
        self._tokens, self._seconds = np.asarray(tokens, np.float64), np.asarray(seconds, np.float64)
        if self._tokens.ndim != 1 or self._tokens.shape != self._seconds.shape or len(self._tokens) < 2:
            raise ValueError("a cost curve needs at least two points, each of a token count and a time")
        if not (np.isfinite(self._tokens).all() and np.isfinite(self._seconds).all() and (self._seconds > 0).all()):
            raise ValueError("a cost curve needs finite numbers, and times above 0")
        if (np.diff(self._tokens) <= 0).any():
            raise ValueError("a cost curve needs at least two points of rising token counts")
        self.pair_s, self.drafter = pair_s, drafter
        # A curve that falls at its end is taken as flat there: no step takes less than none.
        self._slope = max(0.0, float(np.diff(self._seconds[-2:])[0] / np.diff(self._tokens[-2:])[0]))

    def __call__(self, tokens: float, drafted: float = 0.0) -> float:
        """Seconds of a step of `tokens` positions, of which the drafter computes `drafted`."""
        if self.drafter is None or not drafted:
            return self._served(tokens)
        return self.drafter(drafted) + (self._served(tokens - drafted) if tokens > drafted else 0.0)

    def keys_s(self, work: StepSize, keys: int) -> float:
        """Seconds that the positions of `work` take to see `keys` keys each, beyond those of the points."""
        drafter_pair_s = self.pair_s if self.drafter is None else self.drafter.pair_s
        return keys * ((work.tokens - work.drafted) * self.pair_s + work.drafted * drafter_pair_s)

    def longest_s(self, tokens: int) -> float:
        """Seconds of the longest step of so many positions. Curves are taken as convex, so that one network computes
        nearly all positions of that step."""
        if self.drafter is None or tokens < 2:
            return self(tokens)
        return max(self(tokens, 1), self(tokens, tokens - 1))

    def _served(self, tokens: float) -> float:
        beyond = max(0.0, tokens - float(self._tokens[-1]))
        return float(np.interp(tokens, self._tokens, self._seconds)) + beyond * self._slope


class Pacing:
    """Chooses how many prompt positions of a block-causal network a step computes, by what they cost the streams that
    run beside them."""

    def __init__(self, cost: StepCost, halving: Halving | None = None, block_size: int = 1) -> None:
        """Prompts are computed in whole blocks of `block_size` positions."""
        self._cost, self._halving, self._least = cost, halving, max(LEAST_CHUNK, block_size)
        self.short_prompt = SHORT_PROMPT
        self._alone = {each: self._efficient(each) for each in (PROMPT_POSITION, PROMPT_POSITION_OF_BOTH)}

    def room(self, work: StepSize, keys: int, most: int, each: StepSize = PROMPT_POSITION) -> int:
        """The prompt positions, at most `most`, that go beside the `work` of others and see about `keys` keys: so many
        that tokens come at most `PAUSE` times as late, but some at least. `each` is the size of one of them:
        `PROMPT_POSITION`, or `PROMPT_POSITION_OF_BOTH`."""
        if not work.tokens:
            return min(self._alone[each], most)
        limit = PAUSE * self._gap_s(work, 0.0)
        low, high = min(self._least, most), most
        while low < high:  # the largest that keeps within the limit
            chunk = (low + high + 1) // 2
            if self._gap_s(work.plus(each, chunk), self._cost.keys_s(each, chunk * keys)) <= limit:
                low = chunk
            else:
                high = chunk - 1
        return low

    def _efficient(self, each: StepSize) -> int:
        """The smallest chunk whose time for each position is at most `EFFICIENT` times the best, alone in a step."""
        sizes = [self._least << power for power in range(6)]
        costs = [self._cost(size * each.tokens, size * each.drafted) / size for size in sizes]
        return next(size for size, cost in zip(sizes, costs, strict=True) if cost <= EFFICIENT * min(costs))

    def _gap_s(self, work: StepSize, more_s: float) -> float:
        """Seconds in which each stream gets a step, of `work` in all."""
        if self._halving is not None and self._halving.pays(work):
            return 2 * self._cost(work.tokens / 2, work.drafted / 2) + more_s
        return self._cost(*work) + more_s


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

    def pays(self, work: StepSize) -> bool:
        """False where the second step costs the device more than it waits for the host otherwise, as where a step's
        time is flat."""
        slack_s = self._slack_s
        if self._positions:
            slack_s = max(LEAST_SLACK_S, work.tokens * self._host_s / self._positions)
        return 2 * self._cost(work.tokens / 2, work.drafted / 2) <= self._cost(*work) + slack_s


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
