"""A rule of the device's, applied on the host: where a policy cuts lanes by what a step has found, the device cannot
know in which part of its row positions may commit."""

from __future__ import annotations

import numpy as np

from ....contract import DeviceCommitRule, Doubles
from ..base import (
    Bools,
    CommitDecision,
    CommitRule,
    HostRuleDefaults,
    StepView,
    top,
)


class Applied(HostRuleDefaults):
    """Commits what `rule`, whose measure is the probability, would."""

    def __init__(self, rule: CommitRule) -> None:
        self._rule = rule

    def choose(self, view: StepView) -> CommitDecision:
        chosen = np.zeros(len(view.positions), np.bool_)
        open_ = view.open
        for part in view.lane_slices:
            transfer = self._rule.for_lane(part.lane, part.first)
            chosen[part.here] = passing(transfer, view.confidence[part.here], open_[part.here])
        return view.commit(chosen)


def passing(transfer: DeviceCommitRule, confidence: Doubles, among: Bools) -> Bools:
    """[n] which of the positions `among` [n] these commit, as `DeviceCommitRule` says; the leftmost of equals first."""
    places = top(confidence, among)
    rank = np.arange(1, len(places) + 1)
    passes = confidence[places] >= transfer.threshold - transfer.factor / (rank + 1)
    passes |= rank <= transfer.sure
    passes |= transfer.last_free & (rank == len(places))
    chosen = np.zeros(len(among), np.bool_)
    chosen[places[np.logical_and.accumulate(passes)]] = True
    return chosen
