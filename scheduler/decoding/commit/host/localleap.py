"""LocalLeap: near a position that is certain, less certainty is enough."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from ...params import Params, Range, Values
from ..base import CommitDecision, HostRuleDefaults, StepView


class LocalLeap(HostRuleDefaults):
    """Open positions of lanes that have `threshold` confidence are anchors and commit; within `reach` positions of one,
    `near_threshold` is enough. Where nothing passes in the leftmost lane, its best commits. Source: arXiv 2510.07081;
    the authors' 0.75 is for LLaDA, for Dream they take 0.8."""

    PARAMS: Mapping[str, Values] = {"near_threshold": Range(0.0, 1.0), "reach": Range(0, 64, whole=True)}

    def __init__(self, threshold: float, near: float, reach: int) -> None:
        self._threshold, self._near, self._reach = threshold, near, reach

    @classmethod
    def of(cls, knobs: Params, length: int) -> Self:
        return cls(knobs.number("threshold"), knobs.number("near_threshold"), knobs.integer("reach"))

    def choose(self, view: StepView) -> CommitDecision:
        confidence, lanes = view.confidence, view.lanes
        anchors = view.positions[lanes][(view.open & (confidence >= self._threshold))[lanes]]
        behind = np.searchsorted(anchors, view.positions - self._reach)
        through = np.searchsorted(anchors, view.positions + self._reach, side="right")
        bar = np.where(through > behind, min(self._near, self._threshold), self._threshold)
        return view.commit(view.at_least(confidence - bar, 0.0))
