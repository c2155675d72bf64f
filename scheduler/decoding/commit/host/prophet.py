"""Prophet: once the network knows the answer, all that is left of it commits at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from ...params import ParamError, Params, Range, Values
from ..base import (
    Bools,
    CommitDecision,
    HostRuleDefaults,
    StepView,
    top,
)
from ..shared.schedule import Schedule

OPEN = "open"  # all that is left of the answer


class Prophet(HostRuleDefaults):
    """Every call measures how far the likeliest token's logit is above the second's, on average over the answer. Where
    that is `early_gap` or more in the first third of the work, `mid_gap` in the second or `late_gap` in the last,
    everything open commits. Until then the most probable positions of a lane do, as many as an even schedule of `steps`
    calls owes, or with a `threshold` as Fast-dLLM does.

    Source: arXiv 2508.19982; pixeli99/Prophet generate_earlyexit.py. The authors measure `answer_length` positions from
    a given one on, `answer_at` on the canvas, and without one decode to the end. Served answers are of any length, so
    ours is "open": of all positions that are open up to the first end token that is there or proposed, the
    `answer_length` with the smallest gaps, since what an answer is about is what is hard to tell. (Over all of them the
    mean is high early: 9 of 20 problems right instead of 18 on tiny-llada.) The share of work done is that of calls,
    with a threshold that of committed positions. All that commits must have been computed: where a cache computes no
    more than a block, this happens as a block begins, or once the answer's end is in it.
    """

    PARAMS: Mapping[str, Values] = {
        "answer_at": Range(0, 1_000_000, whole=True, words=(OPEN,)),
        "answer_length": Range(1, 4096, whole=True),
        "early_gap": Range(0.0, 100.0),
        "mid_gap": Range(0.0, 100.0),
        "late_gap": Range(0.0, 100.0),
    }
    ranks = 2
    sees_ahead = True

    def __init__(
        self, base: Schedule | float, gaps: tuple[float, float, float], answer_at: int | None, answer_length: int
    ) -> None:
        self._base, self._gaps = base, gaps
        self._answer_at, self._answer_length = answer_at, answer_length

    @classmethod
    def of(cls, knobs: Params, length: int) -> Self:
        if knobs["threshold"] is not None and knobs["steps"] is not None:
            raise ParamError("threshold", "'steps' and 'threshold' exclude each other: give one")
        base = Schedule.of(knobs, length) if knobs["threshold"] is None else knobs.number("threshold")
        gaps = knobs.number("early_gap"), knobs.number("mid_gap"), knobs.number("late_gap")
        start = None if knobs["answer_at"] == OPEN else knobs.integer("answer_at")
        if start is not None and start >= length:
            raise ParamError("answer_at", f"answer_at {start} is behind the canvas of {length} (max_tokens)")
        return cls(base, gaps, start, knobs.integer("answer_length"))

    def choose(self, view: StepView) -> CommitDecision:
        if self._knows(view):
            return view.commit(view.open)
        if not isinstance(self._base, Schedule):
            return view.commit(view.at_least(view.confidence, self._base))
        chosen = np.zeros(len(view.positions), np.bool_)
        for part in view.lane_slices:
            here, due = part.here, self._base.due(part.lane.steps)
            chosen[here.start + top(view.confidence[here], view.open[here], due)] = True
        return view.commit(chosen)

    def _knows(self, view: StepView) -> bool:
        if not self._within_sight(view):
            return False
        measured = self._measured(view)
        if not measured.any() or view.logprobs.shape[1] < self.ranks:
            return False
        likely = view.logprobs[measured]
        gaps = likely[:, 0] - likely[:, 1]
        if self._answer_at is None:
            gaps = np.sort(gaps)[: self._answer_length]
        return bool(gaps.mean() >= self._gaps[min(2, int(3 * self._progress(view)))])

    def _progress(self, view: StepView) -> float:
        length = len(view.canvas)
        if isinstance(self._base, Schedule):
            return (view.step + 1) / (self._base.calls * -(-length // self._base.block))
        return float(np.count_nonzero(view.canvas != view.mask_id)) / length

    def _measured(self, view: StepView) -> Bools:
        """[n] the answer's positions."""
        if self._answer_at is not None:
            offset = view.positions - self._answer_at
            return (offset >= 0) & (offset < self._answer_length)
        return view.open & (view.positions <= _end(view))

    def _within_sight(self, view: StepView) -> bool:
        """Whether everything open up to the answer's end is there."""
        masks = view.canvas[: _end(view) + 1] == view.mask_id
        return int(masks.sum()) == int((view.open & (view.positions <= _end(view))).sum())


def _end(view: StepView) -> int:
    """Where the answer ends, as far as the network knows: a canvas position."""
    proposed = np.where(view.open, view.tokens, view.canvas_tokens)
    ends = np.flatnonzero(view.ends[proposed])
    return int(view.positions[ends[0]]) if len(ends) else len(view.canvas) - 1
