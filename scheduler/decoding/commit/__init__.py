"""Second axis of a decoder: the commit rules. `HOST_RULES` lists those that the host applies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..params import OFF, Params, Values
from .base import (
    REPORT_ALL,
    CommitDecision,
    CommitRule,
    HostCommitRule,
    HostDecides,
    LaneSlice,
    StepView,
)
from .device import (
    CommitAtFork,
    Factor,
    Quota,
    Threshold,
    Timesteps,
)
from .host.ahd import Ahd
from .host.bacd import Bacd
from .host.blockbatch import BlockBatch
from .host.ccd import Ccd
from .host.ce import Extrapolated
from .host.credit import Credit
from .host.editing import Editing
from .host.entropy import Entropy
from .host.eoser import Ass, Eoser
from .host.ete import ExploreThenExploit
from .host.freedave import FreeDave
from .host.klass import Klass
from .host.leap import Leap
from .host.learn2pd import Learn2PD
from .host.localleap import LocalLeap
from .host.lopa import LoPA
from .host.prophet import Prophet
from .host.saber import Saber
from .host.tspd import TSPD
from .host.wino import Wino
from .shared.applied import Applied
from .shared.forecast import DEFAULTS as FORECAST

__all__ = [
    "HOST_RULES",
    "REPORT_ALL",
    "Applied",
    "Beside",
    "CommitAtFork",
    "CommitDecision",
    "CommitRule",
    "Factor",
    "HostCommitRule",
    "HostDecides",
    "HostRuleSpec",
    "LaneSlice",
    "Quota",
    "StepView",
    "Threshold",
    "Timesteps",
]


class Beside(NamedTuple):
    """How many rows a step may have beside the request's own, and the knob that says so: of drafts of its canvas, or
    of branches that are `independent`."""

    count: Callable[[Params], int]
    knob: str
    independent: bool = False
    scored: bool = True  # of each token it is known how likely it was in the step that committed it


@dataclass(frozen=True, slots=True)
class HostRuleSpec:
    """A row of `HOST_RULES`: what makes a judge for a canvas of so many positions, and its knobs with their
    defaults; those that no other rule or decoder has, with the values they may have."""

    judge: Callable[[Params, int], HostCommitRule]
    defaults: Mapping[str, object]
    source: str
    knobs: Mapping[str, Values]
    beside: Beside | None = None  # of a `Speculator` or an `Ensemble`


HOST_RULES: Mapping[str, HostRuleSpec] = {
    "bacd": HostRuleSpec(
        judge=Bacd.of,
        defaults={"lower_threshold": 0.6, "upper_threshold": 0.9},
        source="arXiv 2602.09555; LuLuLuyi/TDAR unmasking.py",
        knobs=Bacd.PARAMS,
    ),
    "ete": HostRuleSpec(
        judge=ExploreThenExploit.of,
        defaults={"threshold": 0.9, "ahead_threshold": 0.95, "explore_threshold": 0.6, "least": 2},
        source="arXiv 2511.21103, its idea; the rule is ours",
        knobs=ExploreThenExploit.PARAMS,
    ),
    "ahd": HostRuleSpec(
        judge=Ahd.of,
        defaults={"threshold": 0.9, "drift": 0.01, "drift_decay": 0.5, "history": 6},
        source="arXiv 2604.08964",
        knobs=Ahd.PARAMS,
    ),
    "ass": HostRuleSpec(
        judge=Ass.of,
        defaults={"end_weight": 0.01},
        source="arXiv 2509.23924; yjyddq/EOSER-ASS-RL eval/generate.py",
        knobs=Ass.PARAMS,
    ),
    "ccd": HostRuleSpec(
        judge=Ccd.of,
        defaults={"steps": None, "warmup": 5, "buffer": 4.0},
        source="arXiv 2512.02044; tonyckc/CCD-DLM-code model.py",
        knobs=Ccd.PARAMS,
    ),
    "credit": HostRuleSpec(
        judge=Credit.of,
        defaults={"threshold": 0.9, "credit_alpha": 0.7, "credit_beta": 0.8, "credit_gamma": 0.2},
        source="arXiv 2510.06133; inclusionAI/dInfer decoding/parallel_strategy.py",
        knobs=Credit.PARAMS,
    ),
    "eoser": HostRuleSpec(
        judge=Eoser.of,
        defaults={"steps": None, "end_weight": 0.4, "end_ramp": "canvas"},
        source="arXiv 2509.23924; yjyddq/EOSER-ASS-RL eval/generate.py",
        knobs=Eoser.PARAMS,
    ),
    "klass": HostRuleSpec(
        judge=Klass.of,
        defaults={"threshold": 0.9, "kl_threshold": 0.01, "history": 2, "steps": None, "watch": "lanes"},
        source="arXiv 2511.05664; shkim0116/KLASS src/model/llada_klass.py",
        knobs=Klass.PARAMS,
    ),
    "ce": HostRuleSpec(
        judge=Extrapolated.of,
        defaults={"threshold": 0.9, **FORECAST},
        source="arXiv 2605.30753, of which the code is not public",
        knobs=Extrapolated.PARAMS,
    ),
    "learn2pd": HostRuleSpec(
        judge=Learn2PD.of,
        defaults={"threshold": 0.96, "eotp": True, "extrapolate": False, **FORECAST},
        source="arXiv 2509.25188; ims-kdks/Learning-to-Parallel-Decoding, with weights of our own",
        knobs=Learn2PD.PARAMS,
    ),
    "entropy": HostRuleSpec(
        judge=Entropy.of,
        defaults={"entropy_threshold": 0.5},
        source="arXiv 2601.07568; hao-ai-lab/d3LLM",
        knobs=Entropy.PARAMS,
    ),
    "editing": HostRuleSpec(
        judge=Editing.of,
        defaults={"threshold": 0.7, "edit_threshold": 0.5, "edit_steps": 16},
        source="arXiv 2602.08676; SGLang joint_threshold.py, with the differences that `Editing` names",
        knobs=Editing.PARAMS,
    ),
    "leap": HostRuleSpec(
        judge=Leap.of,
        defaults={"threshold": 0.7, "pool": 0.2},
        source="arXiv 2605.10980, of which only a summary was to be had: see `Leap`",
        knobs=Leap.PARAMS,
    ),
    "blockbatch": HostRuleSpec(
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
        knobs=BlockBatch.PARAMS,
        beside=Beside(BlockBatch.beside, "branches", independent=True, scored=False),
    ),
    "freedave": HostRuleSpec(
        judge=FreeDave.of,
        defaults={"draft_steps": 4, "tokens_per_call": 1, "commit_threshold": OFF},
        source="arXiv 2510.00294; cychomatica/FreeDave generation/core.py",
        knobs=FreeDave.PARAMS,
        beside=Beside(FreeDave.beside, "draft_steps"),
    ),
    "localleap": HostRuleSpec(
        judge=LocalLeap.of,
        defaults={"threshold": 0.9, "near_threshold": 0.75, "reach": 4},
        source="arXiv 2510.07081; friedrichor/LocalLeap",
        knobs=LocalLeap.PARAMS,
    ),
    "prophet": HostRuleSpec(
        judge=Prophet.of,
        defaults={
            "steps": None,
            "threshold": None,
            "answer_at": "open",
            "answer_length": 5,
            "early_gap": 7.5,
            "mid_gap": 5.0,
            "late_gap": 2.5,
        },
        source="arXiv 2508.19982; pixeli99/Prophet generate_earlyexit.py",
        knobs=Prophet.PARAMS,
    ),
    "tspd": HostRuleSpec(
        judge=TSPD.of,
        defaults={"threshold": 0.5, "extrapolate": False, **FORECAST},
        source="arXiv 2605.30753, of which the code is not public, with weights of our own",
        knobs=TSPD.PARAMS,
    ),
    "saber": HostRuleSpec(
        judge=Saber.of,
        defaults={"at_least": 2, "precision": "single"},
        source="arXiv 2510.18165; zhaoyMa/Saber decoding.py",
        knobs=Saber.PARAMS,
    ),
    "wino": HostRuleSpec(
        judge=Wino.of,
        defaults={"threshold": 0.6, "back_threshold": 0.9},
        source="arXiv 2507.18578; Feng-Hong/WINO-DLLM LLaDA/decoding.py",
        knobs=Wino.PARAMS,
    ),
    "lopa": HostRuleSpec(
        judge=LoPA.of,
        defaults={"threshold": 0.9, "branches": 4, "creation_weight": 0.5, "lowest_share": 0.5},
        source="arXiv 2512.16229; zhijie-group/LoPA",
        knobs=LoPA.PARAMS,
        beside=Beside(LoPA.beside, "branches", scored=False),
    ),
}
