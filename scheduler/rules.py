"""Second axis of a decoder, the scheduler's half: what a commit rule asks of a lane in this step.

The other half, choosing positions by these numbers, runs beside the logits (`kernels`). `first` marks the leftmost
lane of a request: it must commit something in every step; lanes behind it commit only what passes, because later
sentences depend on numbers that are still open before them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from .contract import Transfer
from .tree import Lane, Role

NOTHING = Transfer(sure=0, threshold=2.0)  # no confidence reaches it


class CommitRule(Protocol):
    def transfer(self, lane: Lane, first: bool) -> Transfer: ...


class Threshold:
    """Every position at `threshold` confidence or more, in lanes behind the leftmost one at `later` if that is more.
    Source: Fast-dLLM, arXiv 2505.22618; `later` is ours."""

    def __init__(self, threshold: float, later: float = 0.0) -> None:
        self._first = Transfer(sure=1, threshold=threshold)
        self._later = Transfer(sure=0, threshold=max(threshold, later))

    def transfer(self, lane: Lane, first: bool) -> Transfer:
        return self._first if first else self._later


class Factor:
    """The n best while the n-th has confidence `1 - factor / (n + 1)`; as in the published code the last open
    position comes along once its turn is reached. Source: Fast-dLLM, arXiv 2505.22618."""

    def __init__(self, factor: float) -> None:
        self._first = Transfer(sure=1, threshold=1.0, factor=factor, last_free=True)
        self._later = Transfer(sure=0, threshold=1.0, factor=factor)

    def transfer(self, lane: Lane, first: bool) -> Transfer:
        return self._first if first else self._later


@dataclass(frozen=True, slots=True)
class Quota:
    """A lane's masks spread evenly over its budget of `steps` calls, the first calls taking the remainder; a fork
    gives both lanes a budget of their own. Source: LLaDA, arXiv 2502.09992."""

    steps: int

    def transfer(self, lane: Lane, first: bool) -> Transfer:
        due = -(-lane.masks // max(1, self.steps - lane.steps))
        return Transfer(sure=max(1, due) if first else due, threshold=math.inf)


@dataclass(frozen=True, slots=True)
class CommitAtFork:
    """`rule`, but a refine lane commits all that is left of it in its first call: AsyncLane's ablation
    "commit-and-advance"."""

    rule: CommitRule

    def transfer(self, lane: Lane, first: bool) -> Transfer:
        if lane.role is Role.REFINE:
            return Transfer(sure=lane.masks, threshold=math.inf)
        return self.rule.transfer(lane, first)
