"""Commit rules that the device applies: for each lane of a step they give the numbers by which positions are chosen
beside the logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...contract import DeviceCommitRule, Measure
from ..lane_tree import Lane, Role
from .base import CommitRule

SHARPEST = 32.0  # nats: more than any entropy, less than the stand-in for an end token counts


@lru_cache(maxsize=4096)
def shared_rule(
    sure: int, threshold: float = math.inf, factor: float = 0.0, last_free: bool = False
) -> DeviceCommitRule:
    """A rule by plain probability. All requests with these numbers get the same object, so that a step packs it
    once."""
    return DeviceCommitRule(sure, threshold, factor, last_free)


@lru_cache(maxsize=4096)
def bounded_rule(sure: int, bound: float, inclusive: bool) -> DeviceCommitRule:
    """A rule by entropy, shared as those of `shared_rule`. A stand-in for an end token commits only if it is sure."""
    return DeviceCommitRule(sure, -SHARPEST, measure=Measure.ENTROPY, budget=bound, inclusive=inclusive)


class _TwoRules:
    """One rule for `first` lanes and one for those after them."""

    def __init__(self, first: DeviceCommitRule, later: DeviceCommitRule) -> None:
        self._first, self._later = first, later

    def for_lane(self, lane: Lane, first: bool) -> DeviceCommitRule:
        return self._first if first else self._later


class Threshold(_TwoRules):
    """Every position of at least `threshold` confidence commits; in lanes after the leftmost one of at least
    `later_threshold`, if that is more. Source: Fast-dLLM, arXiv 2505.22618; `later_threshold` is ours."""

    def __init__(self, threshold: float, later: float = 0.0) -> None:
        super().__init__(shared_rule(1, threshold), shared_rule(0, max(threshold, later)))


class Factor(_TwoRules):
    """The n best positions commit while the n-th has at least `1 - factor / (n + 1)` confidence; as in the published
    code the last open position commits once its turn comes. Source: Fast-dLLM, arXiv 2505.22618."""

    def __init__(self, factor: float) -> None:
        super().__init__(shared_rule(1, 1.0, factor, last_free=True), shared_rule(0, 1.0, factor))


class EntropyBound(_TwoRules):
    """Open positions commit in the order of their entropies, lowest first, while the entropies of those before add up
    to `entropy_bound` nats at most; with `bound_on` "all", its own entropy too. The best always does. The error of
    tokens that commit together is at most the sum of their entropies less the largest. Entropies are those of the
    network's distribution at temperature 1.

    Source: arXiv 2505.24857; as in transformers' `EntropyBoundSampler` ("others") and in JetEngine's scheduler
    ("all", where the sum must be below the bound)."""

    def __init__(self, bound: float, inclusive: bool) -> None:
        super().__init__(bounded_rule(1, bound, inclusive), bounded_rule(0, bound, inclusive))


@dataclass(frozen=True, slots=True)
class Quota:
    """A lane's masks are spread evenly over its budget of `steps` forwards, the first ones taking the remainder. After
    a fork both lanes have a budget of their own. Source: LLaDA, arXiv 2502.09992."""

    steps: int

    def for_lane(self, lane: Lane, first: bool) -> DeviceCommitRule:
        quota = -(-lane.masks // max(1, self.steps - lane.steps))
        return shared_rule(max(1, quota) if first else quota)


@dataclass(frozen=True, slots=True)
class Timesteps:
    """Time runs from 1 to `eps` in `steps` forwards. Of a lane's masks a forward from t to r takes the share 1 - r / t,
    the last one all that are left. These are the best by `measure`, with `noise` sampled by it without replacement;
    with `Measure.RANDOM` each mask is taken with this probability. A forward may take none.

    Source: Dream, arXiv 2508.15487; DreamLM/Dream generation_utils.py. Its counts are computed in float32, and so are
    these: in float64 some forwards would take one more or less. Three things differ: it measures probabilities after
    temperature and top-p, which is the same at temperature 0 without top-p; a batch shares the count of its mean number
    of masks, where here each request has its own; and its noise comes from a shared generator.
    """

    steps: int
    eps: float
    measure: Measure
    noise: float = 0.0

    def for_lane(self, lane: Lane, first: bool) -> DeviceCommitRule:
        forward = min(lane.steps, self.steps - 1)  # a constraint may have kept the last one from taking all
        if forward == self.steps - 1:
            return DeviceCommitRule(lane.masks, math.inf, measure=self.measure, noise=self.noise)
        left = self._time(forward + 1) / self._time(forward)
        if self.measure is Measure.RANDOM:
            return DeviceCommitRule(0, float(left), measure=self.measure)
        taken = int(np.float32(lane.masks) * (np.float32(1) - left))
        return DeviceCommitRule(taken, math.inf, measure=self.measure, noise=self.noise)

    def _time(self, forward: int) -> np.float32:
        """Entry `forward` of torch.linspace(1, eps, steps + 1), which counts from whichever end is nearer."""
        start, end = np.float32(1), np.float32(self.eps)
        step = (end - start) / np.float32(self.steps)
        if forward < (self.steps + 1) // 2:
            return start + step * np.float32(forward)
        return end - step * np.float32(self.steps - forward)


@dataclass(frozen=True, slots=True)
class CommitAtFork:
    """As `rule`, but a refine lane commits all that is left of it in its first forward: AsyncLane's ablation
    "commit-and-advance"."""

    rule: CommitRule

    def for_lane(self, lane: Lane, first: bool) -> DeviceCommitRule:
        if lane.role is Role.REFINE:
            return shared_rule(lane.masks)
        return self.rule.for_lane(lane, first)
