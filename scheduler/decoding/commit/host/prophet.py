"""Prophet: once the network is sure of the answer, all that is left of it commits at once."""

from __future__ import annotations

import numpy as np

from ...params import Params, Range
from ..base import Bools, CommitDecision, HostCommitRule, StepView, top
from ..shared.schedule import Schedule

OPEN = "open"  # all that is left of the answer


class Prophet(HostCommitRule):
    """Every forward measures the gap between the logits of the likeliest and the second token, on average over the
    answer. Where it is at least `early_gap` in the first third of the work, `mid_gap` in the second or `late_gap` in
    the last, everything open commits. Until then the most probable positions of a lane do, as many as the quota of an
    even schedule of `steps` forwards, or with a `threshold` as in Fast-dLLM.

    Source: arXiv 2508.19982; pixeli99/Prophet generate_earlyexit.py. The authors measure `answer_length` positions from
    a given one on, `answer_at` on the canvas, and without one decode to the end. Served answers are of any length, so
    the default is "open": of all positions that are open up to the first end token there or proposed, the
    `answer_length` with the smallest gaps. (Over all of them the mean is high early: 9 of 20 problems right instead of
    18 on tiny-llada.) The share of work done is that of forwards, with a threshold that of committed positions. All
    that commits must have been computed: with a cache that computes only a block, this happens as a block begins, or
    once the answer's end is in it.
    """

    NAME = "prophet"
    SOURCE = "arXiv 2508.19982; pixeli99/Prophet generate_earlyexit.py"
    DEFAULTS = {
        "steps": None,
        "threshold": None,
        "answer_at": OPEN,
        "answer_length": 5,
        "early_gap": 7.5,
        "mid_gap": 5.0,
        "late_gap": 2.5,
    }
    PARAMS = {
        "answer_at": Range(0, 1_000_000, whole=True, words=(OPEN,)),
        "answer_length": Range(1, 4096, whole=True),
        "early_gap": Range(0.0, 100.0),
        "mid_gap": Range(0.0, 100.0),
        "late_gap": Range(0.0, 100.0),
    }
    ranks = 2
    sees_ahead = True

    def __init__(self, params: Params, length: int) -> None:
        by_schedule = params["threshold"] is None
        self._base = Schedule.of(params, length) if by_schedule else params.number("threshold")
        self._gaps = [params.number(name) for name in ("early_gap", "mid_gap", "late_gap")]
        self._answer_at = None if params["answer_at"] == OPEN else params.integer("answer_at")
        self._answer_length = params.integer("answer_length")

    def choose(self, view: StepView) -> CommitDecision:
        if self._knows(view):
            return view.commit(view.open)
        if not isinstance(self._base, Schedule):
            return view.commit(view.at_least(view.confidence, self._base))
        chosen = view.nothing()
        for lane, here, _ in view.lane_slices:
            chosen[here.start + top(view.confidence[here], view.open[here], self._base.quota(lane.steps))] = True
        return view.commit(chosen)

    def _knows(self, view: StepView) -> bool:
        end = _end(view)
        sight = view.open & (view.positions <= end)
        if np.count_nonzero(view.canvas[: end + 1] == view.mask_id) > np.count_nonzero(sight):
            return False  # some of the answer was not computed
        measured = self._measured(view, sight)
        if not measured.any() or view.logprobs.shape[1] < self.ranks:
            return False
        gaps = view.logprobs[measured, 0] - view.logprobs[measured, 1]
        if self._answer_at is None:
            gaps = np.sort(gaps)[: self._answer_length]
        return bool(gaps.mean() >= self._gaps[min(2, int(3 * self._progress(view)))])

    def _progress(self, view: StepView) -> float:
        length = len(view.canvas)
        if isinstance(self._base, Schedule):
            return (view.step + 1) / (self._base.forwards * -(-length // self._base.block))
        return float(np.count_nonzero(view.canvas != view.mask_id)) / length

    def _measured(self, view: StepView, sight: Bools) -> Bools:
        """[n] the answer's positions."""
        if self._answer_at is None:
            return sight
        offset = view.positions - self._answer_at
        return (offset >= 0) & (offset < self._answer_length)


def _end(view: StepView) -> int:
    """The answer's last position on the canvas, as far as the network knows."""
    proposed = np.where(view.open, view.tokens, view.canvas_tokens)
    ends = np.flatnonzero(view.ends[proposed])
    return int(view.positions[ends[0]]) if len(ends) else len(view.canvas) - 1
