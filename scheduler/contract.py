"""Everything that passes between the scheduler and the device: `StepPlan` down, `StepResult` up.

Positions are absolute: the prompt is `[0, P)`, the canvas starts at `P`. This file imports no other part of the
project, so that either side can be replaced, faked or moved to another process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one request draws tokens. Temperature 0 is argmax; noise comes from a counter keyed by
    (seed, position, the request's own step), never from a shared generator."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Transfer:
    """Which of a lane's open positions commit, by their rank n = 1, 2, ... in falling confidence.

    Rank n commits while every better rank did and `confidence >= threshold - factor / (n + 1)`; the `sure` best
    ones need no test, and with `last_free` neither does the last. This covers the threshold, factor and quota rules.
    """

    sure: int
    threshold: float
    factor: float = 0.0
    last_free: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """The part `[start, end)` of a row in which masks may commit in this step: one lane."""

    start: int
    end: int
    transfer: Transfer


@dataclass(frozen=True, slots=True)
class Row:
    """One request's contiguous range `[start, end)` of positions, computed in this step.

    Its keys and values are written in place; its queries then see all keys in `[0, visible)`, without a causal mask.
    """

    slot: int
    start: int
    end: int
    visible: int
    spans: tuple[Span, ...]
    sampling: Sampling
    step: int

    @property
    def tokens(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Placement:
    """A request that enters a slot: before the step, its canvas becomes `prompt` and masks, on these pages."""

    slot: int
    prompt: Ints
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    placements: tuple[Placement, ...]
    rows: tuple[Row, ...]

    @property
    def tokens(self) -> int:
        return sum(row.tokens for row in self.rows)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the canvas holds after the step, over the positions of all spans in the order of the plan.

    `tokens` [positions] are token ids, the mask id where still open; `confidence` [positions] is the probability of
    the proposal at that position in this step; `device_s` is the time the device took, in seconds.
    """

    tokens: Ints
    confidence: Floats
    device_s: float


class Executor(Protocol):
    """Runs one plan at a time, from one thread. An exception means that nothing of the plan may be relied upon."""

    def execute(self, plan: StepPlan) -> StepResult: ...
