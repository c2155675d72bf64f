"""Second axis of a decoder: the commit rules. `JUDGES` has those that the host applies, one file and one row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..knobs import OFF, Knobs, Values
from .base import TELL, CommitRule, Evidence, Judge, Judged, Part, Verdict
from .blockbatch import BlockBatch
from .freedave import FreeDave
from .localleap import LocalLeap
from .lopa import LoPA
from .transfers import CommitAtFork, Factor, Quota, Threshold, Timesteps

__all__ = [
    "JUDGES",
    "TELL",
    "Beside",
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


class Beside(NamedTuple):
    """How many rows a step may have beside the request's own, and the knob that says so: of drafts of its canvas, or
    of branches that are `independent`."""

    count: Callable[[Knobs], int]
    knob: str
    independent: bool = False
    scored: bool = True  # of each token it is known how likely it was in the step that committed it


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of `JUDGES`: what makes a judge for a canvas of so many positions, and its knobs with their defaults; those
    that no other rule or decoder has, with the values they may have."""

    judge: Callable[[Knobs, int], Judge]
    defaults: Mapping[str, object]
    source: str
    knobs: Mapping[str, Values]
    beside: Beside | None = None  # of a `Speculator` or an `Ensemble`


JUDGES: Mapping[str, Rule] = {
    "blockbatch": Rule(
        judge=BlockBatch.of,
        defaults={
            "threshold": 0.9,
            "branches": 4,
            "smallest_block": 8,
            "sync_lag": 8,
            "merge_threshold": 0.5,
            "refresh_size": 32,
        },
        source="arXiv 2605.29233; Laurence-Wu/BlockBatch llada/generate_blockBatching_original_bulk.py",
        knobs=BlockBatch.KNOBS,
        beside=Beside(BlockBatch.count, "branches", independent=True, scored=False),
    ),
    "freedave": Rule(
        judge=FreeDave.of,
        defaults={"draft_steps": 4, "tokens_per_call": 1, "commit_threshold": OFF},
        source="arXiv 2510.00294; cychomatica/FreeDave generation/core.py",
        knobs=FreeDave.KNOBS,
        beside=Beside(FreeDave.branches, "draft_steps"),
    ),
    "localleap": Rule(
        judge=LocalLeap.of,
        defaults={"threshold": 0.9, "near_threshold": 0.75, "reach": 4},
        source="arXiv 2510.07081; friedrichor/LocalLeap",
        knobs=LocalLeap.KNOBS,
    ),
    "lopa": Rule(
        judge=LoPA.of,
        defaults={"threshold": 0.9, "branches": 4, "creation_weight": 0.5, "lowest_share": 0.5},
        source="arXiv 2512.16229; zhijie-group/LoPA",
        knobs=LoPA.KNOBS,
        beside=Beside(LoPA.beside, "branches", scored=False),
    ),
}
