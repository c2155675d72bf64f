"""Second axis of a decoder: the commit rules. `JUDGES` has those that the host applies, one file and one row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..knobs import Knobs, Values
from .base import TELL, CommitRule, Evidence, Judge, Judged, Part, Verdict
from .ce import Extrapolated
from .forecast import DEFAULTS as FORECAST
from .learn2pd import Learn2PD
from .localleap import LocalLeap
from .transfers import CommitAtFork, Factor, Quota, Threshold, Timesteps
from .tspd import TSPD

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
    "ce": Rule(
        judge=Extrapolated.of,
        defaults={"threshold": 0.9, **FORECAST},
        source="arXiv 2605.30753, of which the code is not public",
        knobs=Extrapolated.KNOBS,
    ),
    "learn2pd": Rule(
        judge=Learn2PD.of,
        defaults={"threshold": 0.96, "eotp": True, "extrapolate": False, **FORECAST},
        source="arXiv 2509.25188; ims-kdks/Learning-to-Parallel-Decoding, with weights of our own",
        knobs=Learn2PD.KNOBS,
    ),
    "localleap": Rule(
        judge=LocalLeap.of,
        defaults={"threshold": 0.9, "near_threshold": 0.75, "reach": 4},
        source="arXiv 2510.07081; friedrichor/LocalLeap",
        knobs=LocalLeap.KNOBS,
    ),
    "tspd": Rule(
        judge=TSPD.of,
        defaults={"threshold": 0.5, "extrapolate": False, **FORECAST},
        source="arXiv 2605.30753, of which the code is not public, with weights of our own",
        knobs=TSPD.KNOBS,
    ),
}
