"""The table of decoders: each row is a lane policy, a commit rule and a cache policy with defaults and a source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .boundaries import Boundary
from .budget import BLOCK_LENGTHS
from .knobs import AUTO, Knobs
from .policies import AsyncLane, Blockwise, LanePolicy

EVERYTHING = 1 << 30  # positions, more than any canvas has


@dataclass(frozen=True, slots=True)
class Method:
    """A row of the table. Its knobs are the keys of `defaults` and those of its rule: `steps`, `threshold` or `factor`,
    which the device applies, or, with a `rule` by name, those of a row of `rules.JUDGES`."""

    policy: Callable[[Knobs], LanePolicy]
    defaults: Mapping[str, object]
    source: str
    rule: str | None = None


def _blockwise(knobs: Knobs) -> LanePolicy:
    return Blockwise(knobs.integer("block_length"))


def _whole(knobs: Knobs) -> LanePolicy:
    """The canvas as one block."""
    return Blockwise(EVERYTHING)


def _asynclane(knobs: Knobs) -> LanePolicy:
    return AsyncLane(
        block_length=BLOCK_LENGTHS[0] if knobs["block_length"] == AUTO else knobs.integer("block_length"),
        max_lanes=knobs.integer("max_lanes"),
        min_fill=knobs.number("min_fill"),
        min_steps=knobs.integer("min_steps"),
        boundary=Boundary[knobs.text("boundary").upper()],
        stable_steps=knobs.integer("stable_steps"),
        coupled=knobs["siblings"] == "coupled",
        early_stop=knobs["early_stop"] is True,
    )


METHODS: Mapping[str, Method] = {
    "llada": Method(
        policy=_blockwise,
        defaults={"steps": None, "block_length": 32, "cache": "none", "early_stop": True},
        source="arXiv 2502.09992; ML-GSAI/LLaDA generate.py",
    ),
    "fast-dllm": Method(
        policy=_blockwise,
        defaults={"threshold": 0.9, "rule": None, "block_length": 32, "cache": "dual", "early_stop": True},
        source="arXiv 2505.22618; Fast-dLLM v1/llada/generate.py",
    ),
    "dream": Method(
        policy=_whole,
        defaults={
            "steps": None,
            "alg": "entropy",
            "alg_temp": 0.0,
            "eps": 0.001,
            "cache": "none",
            "early_stop": True,
        },
        source="arXiv 2508.15487; DreamLM/Dream generation_utils.py, with the differences that `Timesteps` names",
    ),
    "asynclane": Method(
        policy=_asynclane,
        defaults={
            "threshold": 0.95,
            "rule": None,
            "block_length": 32,
            "cache": "compact",
            "lookahead": 32,
            "draft_threshold": 0.995,
            "end_threshold": 0.5,
            "later_threshold": 0.99,
            "max_lanes": 4,
            "min_fill": 0.1,
            "min_steps": 1,
            "boundary": "auto",
            "stable_steps": 0,
            "siblings": "live",
            "refresh_every": 0,
            "refresh_on": "lanes",
            "reuse": True,
            "settle": True,
            "early_stop": True,
        },
        source="arXiv 2606.08411, with settling and live siblings",
    ),
    "blockbatch": Method(
        policy=_whole,
        defaults={"early_stop": True},
        source="arXiv 2605.29233; Laurence-Wu/BlockBatch llada/generate_blockBatching_original_bulk.py",
        rule="blockbatch",
    ),
    "freedave": Method(
        policy=_blockwise,
        defaults={"block_length": 32, "cache": "dual", "early_stop": True},
        source="arXiv 2510.00294; cychomatica/FreeDave generation/core.py",
        rule="freedave",
    ),
    "localleap": Method(
        policy=_blockwise,
        defaults={"block_length": 32, "cache": "dual", "early_stop": True},
        source="arXiv 2510.07081; friedrichor/LocalLeap",
        rule="localleap",
    ),
    "lopa": Method(
        policy=_blockwise,
        defaults={"block_length": 32, "cache": "dual", "early_stop": True},
        source="arXiv 2512.16229; zhijie-group/LoPA",
        rule="lopa",
    ),
}
