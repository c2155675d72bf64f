"""BACD: a threshold that follows the confidence of what the block has committed so far."""

from __future__ import annotations

import numpy as np

from ...params import Params, Range
from ..base import CommitDecision, HostCommitRule, StepView


class Bacd(HostCommitRule):
    """In a lane's first forward its highest confidence is the threshold, later the mean confidence of all that it has
    committed, clipped to `lower_threshold` and `upper_threshold`: an easy block is filled faster. The best position of
    the leftmost lane always commits.

    Source: Bounded Adaptive Confidence Decoding, arXiv 2602.09555; LuLuLuyi/TDAR unmasking.py, with its bounds. There a
    block is the model's own; here the memory belongs to a lane, and a fork starts a new one.
    """

    NAME = "bacd"
    SOURCE = "arXiv 2602.09555; LuLuLuyi/TDAR unmasking.py"
    DEFAULTS = {"lower_threshold": 0.6, "upper_threshold": 0.9}
    PARAMS = {"lower_threshold": Range(0.0, 1.0), "upper_threshold": Range(0.0, 1.0)}

    def __init__(self, params: Params, length: int) -> None:
        self._lower, self._upper = params.number("lower_threshold"), params.number("upper_threshold")
        self._sums: dict[int, tuple[float, int]] = {}  # by lane: the sum and the number of committed confidences

    def choose(self, view: StepView) -> CommitDecision:
        confidence, open_ = view.confidence, view.open
        threshold = np.ones(len(confidence))
        for lane, here, _ in view.lane_slices:
            total, count = self._sums.get(lane.id, (0.0, 0))
            mean = total / count if count else confidence[here].max(initial=0.0, where=open_[here])
            threshold[here] = np.clip(mean, self._lower, self._upper)
        chosen = view.at_least(confidence - threshold, 0.0)
        sums = {}  # lanes that have ended are forgotten
        for lane, here, _ in view.lane_slices:
            total, count = self._sums.get(lane.id, (0.0, 0))
            committed = confidence[here][chosen[here]]
            sums[lane.id] = total + float(committed.sum()), count + len(committed)
        self._sums = sums
        return view.commit(chosen)
