"""Second axis of a decoder: the commit rules. `JUDGES` has those that the host applies, one file and one row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..knobs import Knobs, Values
from .base import TELL, CommitRule, Evidence, Judge, Judged, Part, Verdict
from .editing import Editing
from .leap import Leap
from .localleap import LocalLeap
from .saber import Saber
from .transfers import CommitAtFork, Factor, Quota, Threshold, Timesteps
from .wino import Wino

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
    "editing": Rule(
        judge=Editing.of,
        defaults={"threshold": 0.7, "edit_threshold": 0.5, "edit_steps": 16},
        source="arXiv 2602.08676; SGLang joint_threshold.py, with the differences that `Editing` names",
        knobs=Editing.KNOBS,
    ),
    "leap": Rule(
        judge=Leap.of,
        defaults={"threshold": 0.7, "pool": 0.2},
        source="arXiv 2605.10980, of which only a summary was to be had: see `Leap`",
        knobs=Leap.KNOBS,
    ),
    "localleap": Rule(
        judge=LocalLeap.of,
        defaults={"threshold": 0.9, "near_threshold": 0.75, "reach": 4},
        source="arXiv 2510.07081; friedrichor/LocalLeap",
        knobs=LocalLeap.KNOBS,
    ),
    "saber": Rule(
        judge=Saber.of,
        defaults={"at_least": 2, "precision": "single"},
        source="arXiv 2510.18165; zhaoyMa/Saber decoding.py",
        knobs=Saber.KNOBS,
    ),
    "wino": Rule(
        judge=Wino.of,
        defaults={"threshold": 0.6, "back_threshold": 0.9},
        source="arXiv 2507.18578; Feng-Hong/WINO-DLLM LLaDA/decoding.py",
        knobs=Wino.KNOBS,
    ),
}
