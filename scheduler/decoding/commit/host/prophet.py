"""Prophet: once the network is sure of the answer, all that is left of it commits at once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Self

import numpy as np

from ....contract import Doubles, Ints
from ...params import Params, Range
from ..base import CommitDecision, HostCommitRule, StepView
from ..segments import NONE, Bools, Longs
from ..shared.schedule import Schedule, quotas

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

    @property
    def kind(self) -> Hashable:
        return isinstance(self._base, Schedule), self._answer_at is None

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        return view.commit(cls._early(rules, view) | cls._ordinary(rules, view))

    @classmethod
    def _ordinary(cls, rules: Sequence[Prophet], view: StepView) -> Bools:
        """[n] the positions that commit in any case."""
        thresholds = [rule._base for rule in rules if not isinstance(rule._base, Schedule)]
        if thresholds:
            return view.at_least(view.confidence, view.each(thresholds))
        due = quotas([rule._base for rule in rules if isinstance(rule._base, Schedule)], view.lanes)
        return view.lanes.top(view.confidence, view.open, due)

    @classmethod
    def _early(cls, rules: Sequence[Prophet], view: StepView) -> Bools:
        """[n] all positions of the requests whose answer the network knows."""
        end = _ends(view)
        sight = view.open & (view.positions <= view.each(end))
        seen = view.requests.count(sight).tolist()
        knows = np.zeros(len(rules), np.bool_)
        if view.logprobs.shape[1] < cls.ranks:
            return view.each(knows)
        measured = cls._measured(rules, view, sight)
        places = np.flatnonzero(measured)
        logprobs = view.logprobs[places, : cls.ranks].astype(np.float64)
        gaps, owner = logprobs[:, 0] - logprobs[:, 1], view.requests.index[places]
        bounds = pairwise(owner.searchsorted(np.arange(len(rules) + 1)).tolist())
        for number, (rule, canvas, last, (start, stop)) in enumerate(
            zip(rules, view.canvases, end.tolist(), bounds, strict=True)
        ):
            if start == stop or np.count_nonzero(canvas[: last + 1] == view.mask_id) > seen[number]:
                continue  # some of the answer was not computed
            knows[number] = rule._mean(gaps[start:stop]) >= rule._required(
                canvas, int(view.steps[number]), view.mask_id
            )
        return view.each(knows)

    def _mean(self, gaps: Doubles) -> float:
        """The mean gap of the answer."""
        return float((np.sort(gaps)[: self._answer_length] if self._answer_at is None else gaps).mean())

    def _required(self, canvas: Ints, step: int, mask_id: int) -> float:
        """The gap that is enough now."""
        length = len(canvas)
        if isinstance(self._base, Schedule):
            progress = (step + 1) / (self._base.forwards * -(-length // self._base.block))
        else:
            progress = float(np.count_nonzero(canvas != mask_id)) / length
        return self._gaps[min(2, int(3 * progress))]

    @staticmethod
    def _measured(rules: Sequence[Prophet], view: StepView, sight: Bools) -> Bools:
        """[n] the answers' positions."""
        starts = [rule._answer_at for rule in rules if rule._answer_at is not None]
        if not starts:
            return sight
        offset = view.positions - view.each(starts)
        return (offset >= 0) & (offset < view.each([rule._answer_length for rule in rules]))


def _ends(view: StepView) -> Longs:
    """[r] the answer's last position on each canvas, as far as the network knows."""
    proposed = np.where(view.open, view.tokens, view.canvas_tokens)
    found = view.requests.first(view.ends[proposed])
    lengths = np.array([len(canvas) for canvas in view.canvases])
    return np.where(found == NONE, lengths - 1, view.positions[found])
