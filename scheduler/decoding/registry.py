"""The table of decoders: each row is a lane policy, a commit rule and a cache policy with defaults and a source."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .boundaries import Boundary
from .commit import HOST_RULES
from .commit.base import EVERYTHING
from .lanes import (
    AdaBlock,
    AsyncLane,
    Blockwise,
    CoarseFine,
    Growing,
    LanePolicy,
    MultiBlock,
    SlowFast,
)
from .params import AUTO, BLOCK_LENGTHS, CANVAS, Params


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A row of the table. Its knobs are the keys of `defaults` and those of its rule: `steps`, `threshold` or `factor`,
    which the device applies, or, with a `rule` by name, those of a row of `rules.HOST_RULES`, whose defaults give way
    to the method's. One that is `for_blocks` takes block-causal networks alone."""

    policy: Callable[[Params], LanePolicy]
    defaults: Mapping[str, object]
    source: str
    rule: str | None = None
    for_blocks: bool = False


def _blockwise(knobs: Params) -> LanePolicy:
    return Blockwise(knobs.integer("block_length"))


def _whole(knobs: Params) -> LanePolicy:
    """The canvas as one block."""
    return Blockwise(EVERYTHING)


def _growing(knobs: Params) -> LanePolicy:
    return Growing(knobs.integer("block_count"))


def _asynclane(knobs: Params) -> LanePolicy:
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


def _adablock(knobs: Params) -> LanePolicy:
    return AdaBlock(
        block_length=knobs.integer("block_length"),
        window=knobs.number("window"),
        delimiters=knobs.text("delimiters"),
        delimiter_threshold=knobs.number("delimiter_threshold"),
    )


def _d2f(knobs: Params) -> LanePolicy:
    return MultiBlock(
        block_length=knobs.integer("block_length"),
        add_threshold=knobs.number("add_threshold"),
        active_threshold=knobs.threshold("active_threshold"),
        early_stop=knobs["early_stop"] is True,
    )


def _d3llm(knobs: Params) -> LanePolicy:
    return MultiBlock(
        block_length=knobs.integer("block_length"),
        add_threshold=knobs.number("add_threshold"),
        active_threshold=math.inf,
        early_stop=knobs["early_stop"] is True,
        fills=True,
    )


def _slowfast(knobs: Params) -> LanePolicy:
    return SlowFast(
        block_length=knobs.integer("block_length"),
        slow_calls=knobs.integer("slow_calls"),
        cycle_threshold=knobs.number("cycle_threshold"),
        stable_window=knobs.integer("stable_window"),
        stable_spread=knobs.number("stable_spread"),
        patient=knobs["explore"] == "all",
    )


def _tccf(knobs: Params) -> LanePolicy:
    return CoarseFine(knobs.integer("block_length"), knobs.integer("fine_length"), knobs.text("turn"))


def _serial(rule: str, **defaults: object) -> DecoderSpec:
    """Serial blocks with a judge, from the judge's own source."""
    own = {"block_length": 32, **defaults, "early_stop": True}
    return DecoderSpec(policy=_blockwise, defaults=own, source=HOST_RULES[rule].source, rule=rule)


def _cached(cache: str, source: str) -> DecoderSpec:
    """LLaDA's own sampler over a cache that was published with it."""
    return DecoderSpec(_blockwise, {"steps": None, "block_length": 32, "cache": cache, "early_stop": True}, source)


DECODERS: Mapping[str, DecoderSpec] = {
    "asynclane": DecoderSpec(
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
    "fast-dllm": DecoderSpec(
        policy=_blockwise,
        defaults={"threshold": 0.9, "rule": None, "block_length": 32, "cache": "dual", "early_stop": True},
        source="arXiv 2505.22618; Fast-dLLM v1/llada/generate.py",
    ),
    "llada": DecoderSpec(
        policy=_blockwise,
        defaults={"steps": None, "block_length": 32, "cache": "none", "early_stop": True},
        source="arXiv 2502.09992; ML-GSAI/LLaDA generate.py",
    ),
    "dream": DecoderSpec(
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
    "adablock": DecoderSpec(
        policy=_adablock,
        defaults={
            "threshold": 0.9,
            "rule": None,
            "block_length": 32,
            "window": 0.25,
            "delimiters": "newline",
            "delimiter_threshold": 0.3,
            "cache": "dual",
            "early_stop": True,
        },
        source="arXiv 2509.26432; lgxi24/AdaBlock-dLLM",
    ),
    "ahd": _serial("ahd", cache="none"),
    "ass": DecoderSpec(
        policy=_growing,
        defaults={"block_count": 1, "cache": "none", "early_stop": True},
        source="arXiv 2509.23924; yjyddq/EOSER-ASS-RL eval/generate.py",
        rule="ass",
    ),
    "bacd": _serial("bacd", cache="dual"),
    "blockbatch": DecoderSpec(
        policy=_whole,
        defaults={"early_stop": True},
        source="arXiv 2605.29233; Laurence-Wu/BlockBatch llada/generate_blockBatching_original_bulk.py",
        rule="blockbatch",
    ),
    "ccd": _serial("ccd", cache="none"),
    "ce": _serial("ce", cache="dual"),
    "credit": _serial("credit", cache="none"),
    "d2f": DecoderSpec(
        policy=_d2f,
        defaults={
            "threshold": 0.9,
            "rule": None,
            "block_length": 32,
            "add_threshold": 0.7,
            "active_threshold": 0.95,
            "cache": "dual",
            "early_stop": True,
        },
        source="arXiv 2508.09192; zhijie-group/Discrete-Diffusion-Forcing, less its causal cache",
    ),
    "d3llm": DecoderSpec(
        policy=_d3llm,
        defaults={"block_length": 32, "add_threshold": 0.1, "cache": "dual", "early_stop": True},
        source="arXiv 2601.07568; hao-ai-lab/d3LLM",
        rule="entropy",
    ),
    "d2cache": _cached("d2", "arXiv 2509.23094; Kamichanw/d2Cache, with the differences that its cache names"),
    "dkv": _cached("delayed", "arXiv 2505.15781; horseee/dKV-Cache, with the differences that its cache names"),
    "dllm-cache": _cached(
        "interval", "arXiv 2506.06295; maomaocun/dLLM-cache, with the differences that its cache names"
    ),
    "eoser": _serial("eoser", cache="none"),
    "ete": _serial("ete", cache="none"),
    "freedave": _serial("freedave", cache="dual"),
    "klass": _serial("klass", watch="canvas", cache="none"),
    "leap": _serial("leap", cache="none"),
    "learn2pd": _serial("learn2pd", cache="none"),
    "llada2": _serial("editing", cache="dual"),
    "localleap": _serial("localleap", cache="dual"),
    "lopa": _serial("lopa", cache="dual"),
    "prophet": _serial("prophet", cache="none"),
    "saber": _serial("saber", block_length=4096, cache="none"),
    "slowfast": DecoderSpec(
        policy=_slowfast,
        defaults={
            "threshold": 0.9,
            "rule": None,
            "block_length": 256,
            "slow_calls": 6,
            "cycle_threshold": 0.3,
            "stable_window": 2,
            "stable_spread": 1.0,
            "explore": "all",
            "lookahead": CANVAS,
            "cache": "dual",
            "early_stop": True,
        },
        source="arXiv 2506.10848; LiangrunFlora/Slow-Fast-Sampling",
    ),
    "tccf": DecoderSpec(
        policy=_tccf,
        defaults={"block_length": 16, "fine_length": 1, "turn": "think", "cache": "prefix", "early_stop": True},
        source="arXiv 2602.09555; LuLuLuyi/TDAR, with the differences that its lanes name",
        rule="bacd",
        for_blocks=True,
    ),
    "tspd": _serial("tspd", cache="dual"),
    "window": DecoderSpec(
        policy=_whole,
        defaults={"steps": None, "cache": "window", "early_stop": True},
        source="vhicrgit/Window-Diffusion, with the difference that its cache names",
    ),
    "wino": _serial("wino", block_length=128, cache="none"),
}
