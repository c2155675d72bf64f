"""LocalLeap: near a confident position less confidence is enough."""

from __future__ import annotations

import numpy as np

from ...params import Params, Range
from ..base import CommitDecision, HostCommitRule, StepView


class LocalLeap(HostCommitRule):
    """Open positions of lanes with `threshold` confidence are anchors and commit; within `reach` positions of an anchor
    `near_threshold` is enough. Where nothing passes in the leftmost lane, its best commits. Source: arXiv 2510.07081;
    the authors' 0.75 is for LLaDA, for Dream they use 0.8."""

    NAME = "localleap"
    SOURCE = "arXiv 2510.07081; friedrichor/LocalLeap"
    DEFAULTS = {"threshold": 0.9, "near_threshold": 0.75, "reach": 4}
    PARAMS = {"near_threshold": Range(0.0, 1.0), "reach": Range(0, 64, whole=True)}

    def __init__(self, params: Params, length: int) -> None:
        self._threshold, self._reach = params.number("threshold"), params.integer("reach")
        self._near = min(params.number("near_threshold"), self._threshold)

    def choose(self, view: StepView) -> CommitDecision:
        confidence, lanes = view.confidence, view.lanes
        anchors = view.positions[lanes][(view.open & (confidence >= self._threshold))[lanes]]
        before = np.searchsorted(anchors, view.positions - self._reach)
        through = np.searchsorted(anchors, view.positions + self._reach, side="right")
        threshold = np.where(through > before, self._near, self._threshold)
        return view.commit(view.at_least(confidence - threshold, 0.0))
