"""Second axis of a decoder: the commit rules. `JUDGES` has those that the host applies, one file and one row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..knobs import Knobs, Values
from .bacd import Bacd
from .base import TELL, CommitRule, Evidence, Judge, Judged, Part, Verdict
from .ete import ExploreThenExploit
from .localleap import LocalLeap
from .transfers import CommitAtFork, Factor, Quota, Threshold, Timesteps

__all__ = [
    "JUDGES",
    "TELL",
    "CommitAtFork",
    "CommitRule",
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


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of `JUDGES`: what makes a judge for a canvas of so many positions, and its knobs with their defaults; those
    that no other rule or decoder has, with the values they may have."""

    judge: Callable[[Knobs, int], Judge]
    defaults: Mapping[str, object]
    source: str
    knobs: Mapping[str, Values]


JUDGES: Mapping[str, Rule] = {
    "bacd": Rule(
        judge=Bacd.of,
        defaults={"lower_threshold": 0.6, "upper_threshold": 0.9},
        source="arXiv 2602.09555; LuLuLuyi/TDAR unmasking.py",
        knobs=Bacd.KNOBS,
    ),
    "ete": Rule(
        judge=ExploreThenExploit.of,
        defaults={"threshold": 0.9, "ahead_threshold": 0.95, "explore_threshold": 0.6, "least": 2},
        source="arXiv 2511.21103, its idea; the rule is ours",
        knobs=ExploreThenExploit.KNOBS,
    ),
    "localleap": Rule(
        judge=LocalLeap.of,
        defaults={"threshold": 0.9, "near_threshold": 0.75, "reach": 4},
        source="arXiv 2510.07081; friedrichor/LocalLeap",
        knobs=LocalLeap.KNOBS,
    ),
}
