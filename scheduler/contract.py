"""Everything that passes between the scheduler and the device: `StepPlan` down, `StepResult` up.

Positions are absolute: the prompt is `[0, P)`, the canvas starts at `P`. This file imports no other part of the
project, so that either side can be replaced, faked or moved to another process.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one request draws tokens. Temperature 0 is argmax; noise comes from a counter keyed by
    (seed, position, the request's own step), never from a shared generator. top_k 0 and min_p 0 keep all tokens."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    top_k: int = 0
    min_p: float = 0.0


GREEDY = Sampling()
MOST_RANKS = 20  # likeliest tokens of a position that a row may ask for


class Measure(IntEnum):
    """What a position's confidence is. By MARGIN and ENTROPY, what stands in for an end token is behind all others."""

    PROBABILITY = 0  # of what may commit, at temperature 1
    MARGIN = 1  # of the best token over the second best
    ENTROPY = 2  # in nats, negative
    RANDOM = 3  # uniform noise in (0, 1)
    SINGLE = 4  # PROBABILITY rounded to float32; on a CPU to the last bit what torch's softmax in float32 gives


@dataclass(frozen=True, slots=True)
class DeviceCommitRule:
    """Which of a lane's open positions commit, by their rank n = 1, 2, ... in falling confidence, which is `measure`.

    Rank n commits while every better rank did and `confidence >= threshold - factor / (n + 1)`; the `sure` best
    ones need no test, and with `last_free` neither does the last. With `noise` confidence is `measure / noise` plus
    Gumbel noise, so the best are drawn without replacement with weights `exp(measure / noise)`.
    """

    sure: int
    threshold: float
    factor: float = 0.0
    last_free: bool = False
    measure: Measure = Measure.PROBABILITY
    noise: float = 0.0

    @property
    def plain(self) -> bool:
        return self.measure is Measure.PROBABILITY and not self.noise


@dataclass(frozen=True, slots=True)
class Span:
    """The part `[start, end)` of a row in which masks may commit in this step: a lane, or the look-ahead behind all.

    Without `may_end` no end token is proposed there: the next best stands in, with its own small probability. Where
    positions that are not computed part a lane, what is `joined` is ranked together with the span before it.
    """

    start: int
    end: int
    rule: DeviceCommitRule
    may_end: bool = True
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Bias:
    """What is added to the logits of `tokens` [n], each there once, at the positions `[start, end)` of a row: `deltas`
    [n], where minus infinity bans."""

    start: int
    end: int
    tokens: Ints
    deltas: Floats


@dataclass(frozen=True, slots=True)
class Restriction:
    """Token t may come at an absolute position if bit t % 32, from the lowest up, of words[t // 32] is set."""

    position: int
    words: Ints


class RowCopy(NamedTuple):
    """A row that stands in for others: each of its positions for the one `of` before it, as which it is rotated. A
    query at p does not see the key at p - `hides`."""

    rope_offset: int
    mask_offset: int


@dataclass(frozen=True, slots=True)
class Row:
    """One request's contiguous range `[start, end)` of positions, computed in this step. It may have several, in order.

    Keys and values are written in place; then its queries see all keys in `[0, visible)`, without a causal mask.
    A row without spans only renews keys and values. Where a network predicts a position at the one before it, a span
    does not start with its row. `biases` are disjoint. `ranks` says how many of each position's
    likeliest tokens the result must tell with their log-probabilities; None: nothing of the kind. A `restriction` is of
    a position in one of the spans. `held` [end - start], if given, is what the canvas holds from now on. Behind its
    canvas a request may have rows that `copy` a part of it; its own rows do not see them.
    """

    slot: int
    start: int
    end: int
    visible: int
    spans: tuple[Span, ...]
    sampling: Sampling
    step: int
    biases: tuple[Bias, ...] = ()
    ranks: int | None = None
    restriction: Restriction | None = None
    host_tokens: Ints | None = None
    copy: RowCopy | None = None

    @property
    def tokens(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Placement:
    """What a slot holds from this step on: its canvas becomes `prompt` and masks behind it, on these pages.

    `prompt` may hold masks. Pages keep what was written to them, so a slot can be placed anew in mid-answer; `copied`
    are pages (from, to) whose keys and values are copied first, of all pairs at once, after the placements before.
    """

    slot: int
    prompt: Ints
    pages: tuple[int, ...]
    copied: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class StepPlan:
    placements: tuple[Placement, ...]
    rows: tuple[Row, ...]

    @property
    def tokens(self) -> int:
        return sum(row.tokens for row in self.rows)


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities at temperature 1 over all tokens that are not banned, biases included, for every position of
    all spans: of the token that has just committed there or could have, `chosen` [positions], and of the likeliest
    tokens, `ranked` [positions, any] ids in falling order and `logprobs` [positions, any]."""

    chosen: Floats
    ranked: Ints
    logprobs: Floats


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the canvas holds after the step, over the positions of all spans in the order of the plan.

    `tokens` [positions] are token ids, the mask id where still open; `proposals` [positions] are what the network
    proposes there, and `confidence` [positions] the probabilities of these proposals; `device_s` is the time the
    device took, in seconds. `scores` are there if a row asked for `ranks`; `measured` [positions], by what each one's
    rule judged, if some rule is not `plain`.
    """

    tokens: Ints
    proposals: Ints
    confidence: Doubles
    device_s: float
    scores: Scores | None = None
    measured: Floats | None = None


class Executor(Protocol):
    """Runs one plan at a time, from one thread. An exception means that nothing of the plan may be relied upon."""

    def execute(self, plan: StepPlan) -> StepResult: ...
