"""Everything that passes between the scheduler and the device: `StepPlan` down, `StepResult` up.

Positions are absolute: the prompt is `[0, P)`, the canvas starts at `P`. This file imports nothing of the project."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

make = tuple.__new__  # of a NamedTuple and all of its fields: half as long as its own constructor takes

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Sampling:
    """The way one request draws tokens. Temperature 0 is argmax; top_k 0 and min_p 0 keep all tokens. Noise comes from
    a counter keyed by (seed, position, the request's own step), never from a shared generator."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    top_k: int = 0
    min_p: float = 0.0


GREEDY = Sampling()
MOST_RANKS, WIDE_RANKS = 20, 256  # the most likeliest tokens that a row may report for each position; in rare rows


class Measure(IntEnum):
    """The confidence of a position. By MARGIN and ENTROPY, the stand-in for an end token ranks after all others."""

    PROBABILITY = 0  # of what may commit, at temperature 1
    MARGIN = 1  # of the best token over the second best
    ENTROPY = 2  # in nats, negative
    RANDOM = 3  # uniform noise in (0, 1)
    SINGLE = 4  # PROBABILITY rounded to float32; on a CPU to the last bit what torch's softmax in float32 gives


@dataclass(frozen=True, slots=True)
class DeviceCommitRule:
    """The open positions of a lane that commit, by their rank n = 1, 2, ... in falling confidence, which is `measure`.
    Rank n commits if every better rank does, `confidence >= threshold - factor / (n + 1)`, and the better ranks (with
    `inclusive` it, too) cost at most `budget` in all; a cost is minus a confidence. The `sure` best ranks need no test,
    and with `last_free` neither does the last. With `noise`, confidence is `measure / noise` plus Gumbel noise: the
    best are then drawn without replacement with weights `exp(measure / noise)`."""

    sure: int
    threshold: float
    factor: float = 0.0
    last_free: bool = False
    measure: Measure = Measure.PROBABILITY
    noise: float = 0.0
    budget: float = float("inf")
    inclusive: bool = False

    @property
    def plain(self) -> bool:
        return self.measure is Measure.PROBABILITY and not self.noise


class Span(NamedTuple):
    """The part `[start, end)` of a row in which masks may commit: a lane, or the look-ahead after all lanes. Without
    `may_end` no end token is proposed: the next best token stands in, with its own small probability. A `joined` span
    is ranked together with the span before it: positions that are not computed divide their lane."""

    start: int
    end: int
    rule: DeviceCommitRule
    may_end: bool = True
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Bias:
    """`deltas` [n] are added to the logits of distinct `tokens` [n], at positions `[start, end)` of a row. Minus
    infinity bans a token. With `factors` [n], logits above 0 are divided by them before that, and others multiplied."""

    start: int
    end: int
    tokens: Ints
    deltas: Floats
    factors: Floats | None = None


@dataclass(frozen=True, slots=True)
class Restriction:
    """At an absolute position, token t may come if bit t % 32, from the lowest up, of words[t // 32] is set."""

    position: int
    words: Ints


class RowCopy(NamedTuple):
    """A replica row: p is rotated as `p - rope_offset`, and does not see `p - mask_offset`, if this is not 0."""

    rope_offset: int
    mask_offset: int


class Denoising(NamedTuple):
    """A row is a canvas of random tokens. Unless it is its `first` step, the logits of the last one condition it."""

    temperature: float
    first: bool


class Selection(NamedTuple):
    """Some positions of a row go no further than the keys and values of the second layer, which are written for all,
    and keep those of a step before in later layers. The row goes on with `keep` of its open `candidates` [n], those for
    which the attention of all candidates rises most from the first layer to the second, and with all other positions
    but the `cached` [any]; all are absolute, and ascend. Only kept candidates are predicted: at others of its one span,
    which has all candidates, a result has the canvas, the mask's id as proposal, and 0 for all else."""

    keep: int
    candidates: Ints
    cached: Ints

    @property
    def dropped(self) -> int:
        """Positions that later layers leave out."""
        return len(self.candidates) - self.keep + len(self.cached)


class Row(NamedTuple):
    """One request's contiguous range `[start, end)` of positions, computed in this step. It may have several, in order.
    Keys and values are written in place. Then its queries see all keys in `[0, visible)`, in a `causal` row only those
    before the position that they are rotated as, and their own. A row without spans only renews keys and values. Where
    a network predicts a position at the one before it, no span starts with its row. `biases` are disjoint. `ranks` is
    the number of each position's likeliest tokens to report; None: no scores. A `restriction` is of a position in a
    span. If `host_tokens` [end - start] are given, the canvas holds them from now on. Rows that `copy` a part of a
    request are not seen by its own. Tokens `scored` [positions of spans, which may repeat] are scored, but below 0.
    An `order` [end - start] has the row's positions as a causal network reads them: the keys of the n-th are stored as
    those of `start` + n, and seen by queries from there on. A row that is `denoising` also sees all of itself. Where
    there is a `selection` the network is block-causal, predicts a position at itself, and runs on one device. A row of
    the `drafter` is computed by that network, on canvases, keys and values of its own, in the same slots and pages; it
    has `host_tokens`."""

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
    scored: Ints | None = None
    causal: bool = False
    order: Ints | None = None
    denoising: Denoising | None = None
    selection: Selection | None = None
    drafter: bool = False

    @property
    def tokens(self) -> int:
        return self.end - self.start

    @property
    def plain(self) -> bool:
        """True without all of the fields from `restriction` on, which few rows have."""
        return not any(one is not None and one is not False for one in self[9:])


@dataclass(frozen=True, slots=True)
class Placement:
    """A slot from this step on: its canvas becomes `prompt`, which may hold masks, then masks, on these pages. These
    keep keys and values, so a slot can be placed again in mid-answer. `copied` are pages (from, to) whose keys and
    values are copied first: all pairs at once, after the placements before."""

    slot: int
    prompt: Ints
    pages: tuple[int, ...]
    copied: tuple[tuple[int, int], ...] = ()


class Columns(NamedTuple):
    """A plan's R rows as arrays, and their S spans, end to end, of which row r has `span_counts[r]`, span s the rule
    `rules[rule_numbers[s]]`. The last twelve are fields of the rows."""

    slots: Ints
    starts: Ints
    ends: Ints
    visible: Ints
    steps: Ints
    span_counts: Ints
    span_starts: Ints
    span_ends: Ints
    may_end: Bools
    joined: Bools
    rule_numbers: Ints
    rules: tuple[DeviceCommitRule, ...]
    samplings: tuple[Sampling, ...]
    biases: tuple[tuple[Bias, ...], ...]
    ranks: tuple[int | None, ...]
    restrictions: tuple[Restriction | None, ...]
    host_tokens: tuple[Ints | None, ...]
    copies: tuple[RowCopy | None, ...]
    scored: tuple[Ints | None, ...]
    causal: tuple[bool, ...]
    orders: tuple[Ints | None, ...]
    denoising: tuple[Denoising | None, ...]
    selections: tuple[Selection | None, ...]
    drafter: tuple[bool, ...]

    @classmethod
    def of(cls, rows: tuple[Row, ...]) -> Columns:
        fields: list[tuple[Any, ...]] = [*zip(*rows, strict=True)] if rows else [()] * len(Row._fields)
        bounds, (spans, samplings, steps), optional = fields[:4], fields[4:7], fields[7:]
        parts = [*chain.from_iterable(spans)]
        starts, ends, rules, may_end, joined = zip(*parts, strict=True) if parts else [()] * 5
        keys = [*map(id, rules)]  # requests share rules
        distinct = dict(zip(keys, rules, strict=True))
        places = dict(zip(distinct, range(len(distinct)), strict=True))
        numbers = [np.array(part, np.int32) for part in (*bounds, steps, [*map(len, spans)], starts, ends)]
        flags = np.array(may_end, np.bool_), np.array(joined, np.bool_)
        rule_numbers = np.array([*map(places.__getitem__, keys)], np.int32)
        return make(cls, (*numbers, *flags, rule_numbers, tuple(distinct.values()), samplings, *optional))


@dataclass(frozen=True)
class StepPlan:
    placements: tuple[Placement, ...]
    rows: tuple[Row, ...]

    @cached_property
    def columns(self) -> Columns:
        return Columns.of(self.rows)

    @cached_property
    def tokens(self) -> int:
        return sum([row.end - row.start for row in self.rows])

    @cached_property
    def passed(self) -> int:  # all layers
        return self.tokens - sum([row.selection.dropped for row in self.rows if row.selection is not None])

    @cached_property
    def projected(self) -> int:
        return sum([span.end - span.start for row in self.rows for span in row.spans])


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities at temperature 1 over all tokens not banned, biases included, at all n positions of spans:
    `chosen` [n] of the token that has just committed there or could have, or of the row's `scored` one, whose rank is
    in `token_ranks` [n], from 1 on; `ranked` [n, any] are the likeliest tokens in falling order, with `logprobs`."""

    chosen: Floats
    ranked: Ints
    logprobs: Floats
    token_ranks: Ints | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """The canvas after the step, at all n positions of spans in the order of the plan.
    `tokens` [n] are the mask id where still open, the likeliest ones where a row is `denoising`, `proposals` [n] the
    network's, with their probabilities `confidence` [n]. `device_s` is the time of the device, in seconds. `scores` are
    there if a row has `ranks`, and `measured` [n], confidence by each rule's measure, if a rule is not `plain`."""

    tokens: Ints
    proposals: Ints
    confidence: Doubles
    device_s: float
    scores: Scores | None = None
    measured: Floats | None = None


class DeviceLost(RuntimeError):
    """The device failed, and no later plan can succeed."""


class Executor(Protocol):
    """Runs one plan at a time, from one thread. After an exception it has no result, after `DeviceLost` none has."""

    def execute(self, plan: StepPlan) -> StepResult: ...
