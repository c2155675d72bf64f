"""BACD: a threshold that follows the confidence of what the block has committed so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from ...params import Params, Range
from ..base import CommitDecision, HostCommitRule, StepView

Sum = tuple[float, int]  # of committed confidences, and their number
NOTHING: Sum = (0.0, 0)


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
        self._sums: dict[int, Sum] = {}  # by lane: the sum and the number of committed confidences

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        lanes, confidence = view.lanes, view.confidence
        owners = lanes.owners(rules)
        before = [rule._sums.get(lane.id, NOTHING) for rule, lane in zip(owners, lanes.lanes, strict=True)]
        totals, counts = np.array(before).reshape(-1, 2).T
        highest = np.maximum(lanes.highest(confidence, view.open), 0.0)
        mean = np.where(counts > 0, totals / np.maximum(counts, 1), highest)
        lower, upper = np.array([(rule._lower, rule._upper) for rule in owners]).reshape(-1, 2).T
        threshold = np.minimum(np.maximum(mean, lower), upper)
        chosen = view.at_least(confidence - lanes.spread(threshold, outside=1.0), 0.0)
        for rule in rules:
            rule._sums = {}  # lanes that have ended are forgotten
        bounds = zip(lanes.starts.tolist(), lanes.ends.tolist(), lanes.count(chosen).tolist(), strict=True)
        for rule, lane, (total, count), (start, end, more) in zip(owners, lanes.lanes, before, bounds, strict=True):
            committed = float(confidence[start:end][chosen[start:end]].sum()) if more else 0.0
            rule._sums[lane.id] = total + committed, count + more
        return view.commit(chosen)
