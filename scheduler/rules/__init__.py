"""Second axis of a decoder: the commit rules. `JUDGES` has those that the host applies, one file and one row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..knobs import OFF, Knobs, Values
from .base import TELL, CommitRule, Evidence, Judge, Judged, Part, Verdict
from .freedave import FreeDave
from .localleap import LocalLeap
from .transfers import CommitAtFork, Factor, Quota, Threshold, Timesteps

__all__ = [
    "JUDGES",
    "TELL",
    "CommitAtFork",
    "CommitRule",
    "Drafts",
    "Evidence",
    "Factor",
    "Judge",
    "Judged",
    "Part",
    "Quota",
    "Rule",
    "Threshold",
    "Timesteps",
    "Verdict",
]


class Drafts(NamedTuple):
    """How many a step may have, and the knob that says so."""

    count: Callable[[Knobs], int]
    knob: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of `JUDGES`: what makes a judge for a canvas of so many positions, and its knobs with their defaults; those
    that no other rule or decoder has, with the values they may have."""

    judge: Callable[[Knobs, int], Judge]
    defaults: Mapping[str, object]
    source: str
    knobs: Mapping[str, Values]
    drafts: Drafts | None = None  # of a `Speculator`


JUDGES: Mapping[str, Rule] = {
    "freedave": Rule(
        judge=FreeDave.of,
        defaults={"draft_steps": 4, "tokens_per_call": 1, "commit_threshold": OFF},
        source="arXiv 2510.00294; cychomatica/FreeDave generation/core.py",
        knobs=FreeDave.KNOBS,
        drafts=Drafts(FreeDave.branches, "draft_steps"),
    ),
    "localleap": Rule(
        judge=LocalLeap.of,
        defaults={"threshold": 0.9, "near_threshold": 0.75, "reach": 4},
        source="arXiv 2510.07081; friedrichor/LocalLeap",
        knobs=LocalLeap.KNOBS,
    ),
}
