"""LocalLeap: near a confident position less confidence is enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from ...params import Params, Range
from ..base import CommitDecision, HostCommitRule, StepView

FAR = 1 << 32  # more positions than any canvas has
NEVER = 1 << 62


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

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        confidence, reach = view.confidence, view.each([rule._reach for rule in rules])
        threshold, near = view.each([rule._threshold for rule in rules]), view.each([rule._near for rule in rules])
        anchors = view.open & (confidence >= threshold) & view.lanes.inside
        place = view.positions + FAR * view.requests.index  # requests are farther apart than any reach
        last = np.maximum.accumulate(np.where(anchors, place, -FAR))
        following = np.minimum.accumulate(np.where(anchors, place, NEVER)[::-1])[::-1]
        close = (place - last <= reach) | (following - place <= reach)
        return view.commit(view.at_least(confidence - np.where(close, near, threshold), 0.0))
