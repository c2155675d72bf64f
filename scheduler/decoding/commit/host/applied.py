"""A device rule, applied on the host: if a lane policy cuts lanes by what a step has found, the device cannot know
which positions of its row may commit."""

from __future__ import annotations

import numpy as np

from ....contract import DeviceCommitRule, Doubles
from ..base import Bools, CommitDecision, CommitRule, HostCommitRule, StepView, top


class Applied(HostCommitRule):
    """Commits what `rule` would, whose measure is the probability."""

    def __init__(self, rule: CommitRule) -> None:
        self._rule = rule

    def choose(self, view: StepView) -> CommitDecision:
        chosen = view.nothing()
        for lane, here, first in view.lane_slices:
            chosen[here] = passing(self._rule.for_lane(lane, first), view.confidence[here], view.open[here])
        return view.commit(chosen)


def passing(rule: DeviceCommitRule, confidence: Doubles, among: Bools) -> Bools:
    """[n] the positions `among` [n] that commit as `DeviceCommitRule` says; the leftmost of equals first."""
    places = top(confidence, among)
    rank = np.arange(1, len(places) + 1)
    passes = confidence[places] >= rule.threshold - rule.factor / (rank + 1)
    passes |= rank <= rule.sure
    passes |= rule.last_free & (rank == len(places))
    chosen = np.zeros(len(among), np.bool_)
    chosen[places[np.logical_and.accumulate(passes)]] = True
    return chosen
