"""The table of decoders: each row is a lane policy, a commit rule and a cache policy with defaults and a source."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .boundaries import Boundary
from .budget import BLOCK_LENGTHS
from .knobs import AUTO, CANVAS, Knobs
from .policies import DELIMITERS, AdaBlock, AsyncLane, Blockwise, LanePolicy, MultiBlock, SlowFast

EVERYTHING = 1 << 30  # positions, more than any canvas has


@dataclass(frozen=True, slots=True)
class Method:
    """A row of the table. Its knobs are the keys of `defaults` and those of its rule: `steps`, `threshold` or `factor`,
    which the device applies, or, with a `rule` by name, those of a row of `rules.JUDGES`, whose defaults give way to
    the method's."""

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


def _adablock(knobs: Knobs) -> LanePolicy:
    return AdaBlock(
        block_length=knobs.integer("block_length"),
        window=knobs.number("window"),
        delimiters=DELIMITERS[knobs.text("delimiters")],
        delimiter_threshold=knobs.number("delimiter_threshold"),
    )


def _d2f(knobs: Knobs) -> LanePolicy:
    return MultiBlock(
        block_length=knobs.integer("block_length"),
        add_threshold=knobs.number("add_threshold"),
        active_threshold=knobs.threshold("active_threshold"),
        early_stop=knobs["early_stop"] is True,
    )


def _d3llm(knobs: Knobs) -> LanePolicy:
    return MultiBlock(
        block_length=knobs.integer("block_length"),
        add_threshold=knobs.number("add_threshold"),
        active_threshold=math.inf,
        early_stop=knobs["early_stop"] is True,
        fills=True,
    )


def _slowfast(knobs: Knobs) -> LanePolicy:
    return SlowFast(
        block_length=knobs.integer("block_length"),
        slow_calls=knobs.integer("slow_calls"),
        cycle_threshold=knobs.number("cycle_threshold"),
        stable_window=knobs.integer("stable_window"),
        stable_spread=knobs.number("stable_spread"),
        patient=knobs["explore"] == "all",
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
    "bacd": Method(
        policy=_blockwise,
        defaults={"block_length": 32, "cache": "dual", "early_stop": True},
        source="arXiv 2602.09555; LuLuLuyi/TDAR unmasking.py",
        rule="bacd",
    ),
    "ete": Method(
        policy=_blockwise,
        defaults={"block_length": 32, "cache": "none", "early_stop": True},
        source="arXiv 2511.21103, its idea; the rule is ours",
        rule="ete",
    ),
    "ahd": Method(
        policy=_blockwise,
        defaults={"block_length": 32, "cache": "none", "early_stop": True},
        source="arXiv 2604.08964",
        rule="ahd",
    ),
    "ass": Method(
        policy=_whole,
        defaults={"cache": "none", "early_stop": True},
        source="arXiv 2509.23924; yjyddq/EOSER-ASS-RL eval/generate.py",
        rule="ass",
    ),
    "ccd": Method(
        policy=_blockwise,
        defaults={"block_length": 32, "cache": "none", "early_stop": True},
        source="arXiv 2512.02044; tonyckc/CCD-DLM-code model.py",
        rule="ccd",
    ),
    "credit": Method(
        policy=_blockwise,
        defaults={"block_length": 32, "cache": "none", "early_stop": True},
        source="arXiv 2510.06133; inclusionAI/dInfer decoding/parallel_strategy.py",
        rule="credit",
    ),
    "eoser": Method(
        policy=_blockwise,
        defaults={"block_length": 32, "cache": "none", "early_stop": True},
        source="arXiv 2509.23924; yjyddq/EOSER-ASS-RL eval/generate.py",
        rule="eoser",
    ),
    "klass": Method(
        policy=_blockwise,
        defaults={"watch": "canvas", "block_length": 32, "cache": "none", "early_stop": True},
        source="arXiv 2511.05664; shkim0116/KLASS src/model/llada_klass.py",
        rule="klass",
    ),
    "ce": Method(
        policy=_blockwise,
        defaults={"block_length": 32, "cache": "dual", "early_stop": True},
        source="arXiv 2605.30753, CE on Fast-dLLM",
        rule="ce",
    ),
    "learn2pd": Method(
        policy=_blockwise,
        defaults={"block_length": 32, "cache": "none", "early_stop": True},
        source="arXiv 2509.25188; ims-kdks/Learning-to-Parallel-Decoding llada/generate.py, with weights of our own",
        rule="learn2pd",
    ),
    "adablock": Method(
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
    "d2f": Method(
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
    "d3llm": Method(
        policy=_d3llm,
        defaults={"block_length": 32, "add_threshold": 0.1, "cache": "dual", "early_stop": True},
        source="arXiv 2601.07568; hao-ai-lab/d3LLM",
        rule="entropy",
    ),
    "leap": Method(
        policy=_blockwise,
        defaults={"block_length": 32, "cache": "none", "early_stop": True},
        source="arXiv 2605.10980, of which only a summary was to be had: see `Leap`",
        rule="leap",
    ),
    "llada2": Method(
        policy=_blockwise,
        defaults={"block_length": 32, "cache": "dual", "early_stop": True},
        source="LLaDA2.1, arXiv 2602.08676",
        rule="editing",
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
    "prophet": Method(
        policy=_blockwise,
        defaults={"block_length": 32, "cache": "none", "early_stop": True},
        source="arXiv 2508.19982; pixeli99/Prophet generate_earlyexit.py",
        rule="prophet",
    ),
    "tspd": Method(
        policy=_blockwise,
        defaults={"block_length": 32, "cache": "dual", "early_stop": True},
        source="arXiv 2605.30753, TSPD with Fast-dLLM's cache, with weights of our own",
        rule="tspd",
    ),
    "window": Method(
        policy=_whole,
        defaults={"steps": None, "cache": "window", "early_stop": True},
        source="vhicrgit/Window-Diffusion, with the difference that its cache names",
    ),
    "slowfast": Method(
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
    "saber": Method(
        policy=_blockwise,
        defaults={"block_length": 4096, "cache": "none", "early_stop": True},
        source="arXiv 2510.18165; zhaoyMa/Saber decoding.py, with the differences that `Saber` names",
        rule="saber",
    ),
    "wino": Method(
        policy=_blockwise,
        defaults={"block_length": 128, "cache": "none", "early_stop": True},
        source="arXiv 2507.18578; Feng-Hong/WINO-DLLM LLaDA/decoding.py",
        rule="wino",
    ),
    "lopa": Method(
        policy=_blockwise,
        defaults={"block_length": 32, "cache": "dual", "early_stop": True},
        source="arXiv 2512.16229; zhijie-group/LoPA",
        rule="lopa",
    ),
}
