"""Commit rules that the device applies: the scheduler says some numbers of a lane, and positions are chosen by them
beside the logits (`kernels`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...contract import DeviceCommitRule, Measure
from ..lane_tree import Lane, Role
from .base import CommitRule


class Threshold:
    """Every position at `threshold` confidence or more, in lanes behind the leftmost one at `later` if that is more.
    Source: Fast-dLLM, arXiv 2505.22618; `later` is ours."""

    def __init__(self, threshold: float, later: float = 0.0) -> None:
        self._first = DeviceCommitRule(sure=1, threshold=threshold)
        self._later = DeviceCommitRule(sure=0, threshold=max(threshold, later))

    def for_lane(self, lane: Lane, first: bool) -> DeviceCommitRule:
        return self._first if first else self._later


class Factor:
    """The n best while the n-th has confidence `1 - factor / (n + 1)`; as in the published code the last open
    position comes along once its turn is reached. Source: Fast-dLLM, arXiv 2505.22618."""

    def __init__(self, factor: float) -> None:
        self._first = DeviceCommitRule(sure=1, threshold=1.0, factor=factor, last_free=True)
        self._later = DeviceCommitRule(sure=0, threshold=1.0, factor=factor)

    def for_lane(self, lane: Lane, first: bool) -> DeviceCommitRule:
        return self._first if first else self._later


@dataclass(frozen=True, slots=True)
class Quota:
    """A lane's masks spread evenly over its budget of `steps` calls, the first calls taking the remainder; a fork
    gives both lanes a budget of their own. Source: LLaDA, arXiv 2502.09992."""

    steps: int

    def for_lane(self, lane: Lane, first: bool) -> DeviceCommitRule:
        due = -(-lane.masks // max(1, self.steps - lane.steps))
        return DeviceCommitRule(sure=max(1, due) if first else due, threshold=math.inf)


@dataclass(frozen=True, slots=True)
class Timesteps:
    """Time runs from 1 to `eps` in `steps` calls: of a lane's masks, a call from t to r takes the share 1 - r / t, the
    last one all that are left. With a measure these are the best by it, with `noise` drawn by it without replacement;
    by `Measure.RANDOM` each mask has this chance for itself. A call may take none.

    Source: Dream, arXiv 2508.15487; DreamLM/Dream generation_utils.py. Its counts come of float32, and so do these: in
    float64 some calls would take one more or less. It differs in three ways: it measures probabilities behind
    temperature and top-p, which is the same at temperature 0 without top-p; a batch shares the count of its mean number
    of masks, where here each request has its own; and its noise comes from a shared generator.
    """

    steps: int
    eps: float
    measure: Measure
    noise: float = 0.0

    def for_lane(self, lane: Lane, first: bool) -> DeviceCommitRule:
        call = min(lane.steps, self.steps - 1)  # a constraint may have kept the last one from taking all
        if call == self.steps - 1:
            return DeviceCommitRule(lane.masks, math.inf, measure=self.measure, noise=self.noise)
        left = self._time(call + 1) / self._time(call)
        if self.measure is Measure.RANDOM:
            return DeviceCommitRule(0, float(left), measure=self.measure)
        taken = int(np.float32(lane.masks) * (np.float32(1) - left))
        return DeviceCommitRule(taken, math.inf, measure=self.measure, noise=self.noise)

    def _time(self, call: int) -> np.float32:
        """Entry `call` of torch.linspace(1, eps, steps + 1), which counts from whichever end is nearer."""
        start, end = np.float32(1), np.float32(self.eps)
        step = (end - start) / np.float32(self.steps)
        if call < (self.steps + 1) // 2:
            return start + step * np.float32(call)
        return end - step * np.float32(self.steps - call)


@dataclass(frozen=True, slots=True)
class CommitAtFork:
    """`rule`, but a refine lane commits all that is left of it in its first call: AsyncLane's ablation
    "commit-and-advance"."""

    rule: CommitRule

    def for_lane(self, lane: Lane, first: bool) -> DeviceCommitRule:
        if lane.role is Role.REFINE:
            return DeviceCommitRule(sure=lane.masks, threshold=math.inf)
        return self.rule.for_lane(lane, first)
