"""A device rule, applied on the host: if a lane policy cuts lanes by what a step has found, the device cannot know
which positions of its row may commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from ....contract import Doubles
from ..base import CommitDecision, CommitRule, HostCommitRule, StepView
from ..segments import Bools, Longs, Segments


class Applied(HostCommitRule):
    """Commits what `rule` would, whose measure is the probability."""

    def __init__(self, rule: CommitRule) -> None:
        self._rule = rule

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        lanes, confidence, open_ = view.lanes, view.confidence, view.open
        owners = zip(lanes.owners(rules), lanes.lanes, lanes.forced.tolist(), strict=True)
        each = [owner._rule.for_lane(lane, first) for owner, lane, first in owners]
        numbers = [(rule.threshold, rule.factor, rule.sure, rule.last_free) for rule in each]
        return view.commit(lanes.top(confidence, open_, _passing(numbers, lanes, confidence, open_)))


def _passing(numbers: Sequence[tuple[float, ...]], lanes: Segments, confidence: Doubles, among: Bools) -> Longs:
    """[s] how many of the best positions `among` [n] of each lane commit, as `DeviceCommitRule` says. Its threshold,
    factor, sure and last_free are the `numbers` [s]."""
    threshold, factor, sure, last_free = np.array(numbers, np.float64).reshape(-1, 4).T[..., None]
    falling, count = lanes.falling(confidence, among), lanes.count(among)[:, None]
    rank = np.arange(1, falling.shape[1] + 1)
    passes = (falling >= threshold - factor / (rank + 1)) | (rank <= sure) | ((last_free > 0) & (rank == count))
    passes &= rank <= count
    count_passing: Longs = np.logical_and.accumulate(passes, axis=1).sum(axis=1)
    return count_passing
