"""A device rule, applied on the host: if a lane policy cuts lanes by what a step has found, the device cannot know
which positions of its row may commit."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Self

import numpy as np

from ....contract import Doubles
from ..base import CommitDecision, CommitRule, HostCommitRule, StepView
from ..device import SHARPEST, EntropyBound
from ..segments import Bools, Longs, Segments


class Applied(HostCommitRule):
    """Commits what `rule` would, whose measure is the probability or the entropy."""

    def __init__(self, rule: CommitRule) -> None:
        self._rule = rule

    @property
    def kind(self) -> Hashable:
        return self._by_entropy

    @property
    def _by_entropy(self) -> bool:
        return isinstance(self._rule, EntropyBound)

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        lanes, open_ = view.lanes, view.open
        confidence = -view.entropy if rules[0]._by_entropy else view.confidence
        owners = zip(lanes.owners(rules), lanes.lanes, lanes.forced.tolist(), strict=True)
        each = [owner._rule.for_lane(lane, first) for owner, lane, first in owners]
        numbers = [
            (rule.threshold, rule.factor, rule.sure, rule.last_free, rule.budget, rule.inclusive) for rule in each
        ]
        return view.commit(lanes.top(confidence, open_, _passing(numbers, lanes, confidence, open_)))


def _passing(numbers: Sequence[tuple[float, ...]], lanes: Segments, confidence: Doubles, among: Bools) -> Longs:
    """[s] how many of the best positions `among` [n] of each lane commit, as `DeviceCommitRule` says. Its threshold,
    factor, sure, last_free, budget and inclusive are the `numbers` [s]."""
    threshold, factor, sure, last_free, budget, inclusive = np.array(numbers, np.float64).reshape(-1, 6).T[..., None]
    falling, count = lanes.falling(confidence, among), lanes.count(among)[:, None]
    rank = np.arange(1, falling.shape[1] + 1)
    cost = np.where(rank <= count, np.minimum(-falling, 2 * SHARPEST), 0.0)
    spent = np.cumsum(cost, axis=1) - np.where(inclusive > 0, 0.0, cost)
    passes = (falling >= threshold - factor / (rank + 1)) & ~(spent > budget)
    passes |= (rank <= sure) | ((last_free > 0) & (rank == count))
    passes &= rank <= count
    count_passing: Longs = np.logical_and.accumulate(passes, axis=1).sum(axis=1)
    return count_passing
