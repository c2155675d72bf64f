"""BACD: a threshold that follows how sure a block has been so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from ...params import Params, Range, Values
from ..base import CommitDecision, HostRuleDefaults, StepView


class Bacd(HostRuleDefaults):
    """In a lane's first call its highest confidence is the bar, later the mean confidence of all that has committed in
    it, but never below `lower_threshold` nor above `upper_threshold`: a block that goes easily is filled faster. Of a
    leftmost lane the best commits in any case.

    Source: Bounded Adaptive Confidence Decoding, arXiv 2602.09555; LuLuLuyi/TDAR unmasking.py, with its bounds. There a
    block is the model's own; here the memory is a lane's, and a fork begins a new one.
    """

    PARAMS: Mapping[str, Values] = {"lower_threshold": Range(0.0, 1.0), "upper_threshold": Range(0.0, 1.0)}

    def __init__(self, lower: float, upper: float) -> None:
        self._lower, self._upper = lower, upper
        self._sums: dict[int, tuple[float, int]] = {}  # by lane: confidences that have committed, and how many

    @classmethod
    def of(cls, knobs: Params, length: int) -> Self:
        lower, upper = knobs.number("lower_threshold"), knobs.number("upper_threshold")
        knobs.require("lower_threshold", lower <= upper, f"must not exceed upper_threshold {upper}")
        return cls(lower, upper)

    def choose(self, view: StepView) -> CommitDecision:
        confidence, open_ = view.confidence, view.open
        bar = np.ones(len(confidence))
        for part in view.lane_slices:
            total, count = self._sums.get(part.lane.id, (0.0, 0))
            sure = total / count if count else confidence[part.here].max(initial=0.0, where=open_[part.here])
            bar[part.here] = np.clip(sure, self._lower, self._upper)
        chosen = view.at_least(confidence - bar, 0.0)
        sums = {}
        for part in view.lane_slices:  # lanes that have ended are forgotten
            total, count = self._sums.get(part.lane.id, (0.0, 0))
            committed = confidence[part.here][chosen[part.here]]
            sums[part.lane.id] = total + float(committed.sum()), count + len(committed)
        self._sums = sums
        return view.commit(chosen)
