"""The table of decoders: each row is a lane policy, a commit rule and a cache policy with defaults and a source."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from .attention_pattern import MOST_DRAFTED
from .cache import CachePolicy
from .commit import HOST_RULES
from .commit.base import EVERYTHING, CommitRule, HostCommitRule
from .denoising import Denoiser
from .lane_tree import Layout
from .lanes.adablock import AdaBlock
from .lanes.asynclane import AsyncLane
from .lanes.base import LanePolicy
from .lanes.blockwise import Blockwise
from .lanes.drafted import Drafted
from .lanes.growing import Growing
from .lanes.multiblock import MultiBlock
from .lanes.parts import Parts
from .lanes.sliding import SlidingBlock
from .lanes.sliding_window import SlidingWindow
from .lanes.slowfast import SlowFast
from .lanes.sub_blocks import SubBlocks
from .lanes.tccf import CoarseFine
from .paper import CHOSEN, RULES
from .params import CANVAS, OFF


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A row of the table. Its parameters are the keys of `defaults` and those of its rule: `steps`, `threshold`,
    `factor` or `entropy_bound`, which the device applies, or with a `rule` those of a row of `HOST_RULES`, where the
    defaults here come first. `fixed` parameters of lanes and rule are no parameters of the decoder. A decoder
    `for_blocks` is for block-causal networks only, one `for_known_first` for those that read known tokens first, an
    `autoregressive` one for those that predict the next token, one that `denoises` for those whose canvases begin with
    random tokens. A confidence must exceed the threshold of a `strict` one. `chosen` has a sentence on each parameter
    whose value its source leaves open. `origin` is the package that brings the decoder, if it is a plug-in."""

    policy: type[LanePolicy]
    defaults: Mapping[str, object]
    source: str
    rule: str | None = None
    for_blocks: bool = False
    for_known_first: bool = False
    autoregressive: bool = False
    strict: bool = False
    denoises: bool = False
    fixed: Mapping[str, object] = field(default_factory=dict)
    chosen: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""

    @property
    def own_pattern(self) -> bool:
        """True if its networks take no other decoder, and no parameter selects its rule or its cache."""
        return self.denoises or self.autoregressive


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder with its parameters set, for a canvas of known length."""

    name: str
    policy: LanePolicy
    rule: CommitRule
    host_rule: Callable[[], HostCommitRule] | None  # makes one for each request, if the host decides what commits
    cache: Callable[[], CachePolicy]  # makes one for each request
    lookahead: int | None  # positions after the last lane; None: the whole canvas
    early_stop: bool  # the request ends once everything before its first end token is committed
    whole_blocks: bool = False  # or rather once all of the lane with that token is
    draft_threshold: float = math.inf  # confidence from which tokens are written ahead of all lanes
    later_threshold: float = (
        0.0  # confidence that a host rule's tokens need in lanes after the leftmost, and drafts of a grammar anywhere
    )
    end_threshold: float = math.inf  # confidence from which a proposed end token bounds the look-ahead
    stop_threshold: float = math.inf  # confidence from which one proposed after all lanes ends an answer without gaps
    stop_given: bool = False  # it was given, so a grammar refuses it; by default a grammar has none
    adaptive: bool = False  # blocks and look-ahead follow the load
    revises: bool = False  # its host rule may change committed tokens
    replica_positions: int = 0  # positions after the canvas that replicas take, at most
    layout: Layout = Layout.PACKED
    branches: int = 0  # rows beside the request's own, at most, each in a slot of its own
    branch_row: int = 0  # the longest such row without what it starts before its lane; at most the request's
    branch_param: str = ""  # the parameter that sets their number
    shares_prompt: bool = False  # its rows share the pages of the prompt, which only the first forward computes
    branch_lookahead: int = 0  # positions after an isolated lane that its row has, too
    scored: bool = True  # the probability of each token in the step that committed it is known
    grows: bool = False  # its host rule decides how long the canvas is
    weighs_tokens: str = ""  # the parameter that selects a host rule which reads how frequent tokens are
    denoiser: Denoiser | None = None  # of canvases that begin with random tokens; None: they begin with masks
    selects: bool = False  # later layers leave out positions, where nothing is predicted


WHOLE: Mapping[str, object] = {"block_length": EVERYTHING}  # the canvas as one block


def serial(rule: type[HostCommitRule], defaults: Mapping[str, object], origin: str = "") -> DecoderSpec:
    """Serial blocks with a host rule, from the rule's own source."""
    own = {"block_length": 32, **defaults, "early_stop": True}
    return DecoderSpec(policy=Blockwise, defaults=own, source=rule.SOURCE, rule=rule.NAME, origin=origin)


def _serial(rule: str, **defaults: object) -> DecoderSpec:
    return serial(HOST_RULES[rule], defaults)


def _threshold(policy: type[LanePolicy], threshold: float, source: str, **defaults: object) -> DecoderSpec:
    """Commits by a threshold, or by the rule that a request names."""
    return DecoderSpec(policy, {"threshold": threshold, "rule": None, **defaults, "early_stop": True}, source)


def _cached(cache: str, source: str) -> DecoderSpec:
    """LLaDA's own sampler with a cache that was published for it."""
    return DecoderSpec(Blockwise, {"steps": None, "block_length": 32, "cache": cache, "early_stop": True}, source)


DECODERS: Mapping[str, DecoderSpec] = {
    "asynclane": _threshold(
        AsyncLane,
        0.95,
        "arXiv 2606.08411, with settling and live siblings",
        block_length=32,
        cache="compact",
        lookahead=32,
        draft_threshold=0.995,
        end_threshold=0.5,
        stop_threshold=0.95,
        later_threshold=0.99,
        max_lanes=4,
        min_fill=0.1,
        min_steps=1,
        boundary="auto",
        stable_steps=0,
        siblings="live",
        refresh_every=0,
        refresh_on="lanes",
        reuse=True,
        settle=True,
    ),
    "asynclane-paper": DecoderSpec(
        AsyncLane,
        {"threshold": 0.9, **RULES},
        "arXiv 2606.08411, every rule as published",
        fixed={"published": True},
        chosen=CHOSEN,
    ),
    "autoregressive": DecoderSpec(
        Blockwise,
        {"early_stop": True},
        "Radford et al., Language Models are Unsupervised Multitask Learners, 2019",
        autoregressive=True,
        fixed={"block_length": 1, "steps": None},
    ),
    "fast-dllm": _threshold(
        Blockwise, 0.9, "arXiv 2505.22618; Fast-dLLM v1/llada/generate.py", block_length=32, cache="dual"
    ),
    "fast-dllm-v2": DecoderSpec(
        SubBlocks,
        {"threshold": 0.9, "sub_block_length": 8, "cache": "prefix", "early_stop": True},
        "arXiv 2509.26328; generate and batch_sample of the published code, with the differences that its lanes name",
        for_blocks=True,
        strict=True,
    ),
    "llada": _cached("none", "arXiv 2502.09992; ML-GSAI/LLaDA generate.py"),
    "dream": DecoderSpec(
        Blockwise,
        {"steps": None, "alg": "entropy", "alg_temp": 0.0, "eps": 0.001, "cache": "none", "early_stop": True},
        "arXiv 2508.15487; DreamLM/Dream generation_utils.py, with the differences that `Timesteps` names",
        fixed=WHOLE,
    ),
    "adablock": _threshold(
        AdaBlock,
        0.9,
        "arXiv 2509.26432; lgxi24/AdaBlock-dLLM",
        block_length=32,
        window=0.25,
        delimiters="newline",
        delimiter_threshold=0.3,
        cache="dual",
    ),
    "ahd": _serial("ahd", cache="none"),
    "ass": DecoderSpec(
        Growing, {"block_count": 1, "cache": "none", "early_stop": True}, HOST_RULES["ass"].SOURCE, rule="ass"
    ),
    "bacd": _serial("bacd", cache="dual"),
    "blockbatch": DecoderSpec(
        Blockwise, {"early_stop": True}, HOST_RULES["blockbatch"].SOURCE, rule="blockbatch", fixed=WHOLE
    ),
    "blockbatch-dream": DecoderSpec(
        Blockwise,
        {"early_stop": True},
        HOST_RULES["blockbatch-dream"].SOURCE,
        rule="blockbatch-dream",
        fixed=WHOLE,
    ),
    "cad": _serial("cad", cache="none"),
    "ccd": _serial("ccd", cache="none"),
    "ce": _serial("ce", cache="dual"),
    "credit": _serial("credit", cache="none"),
    "d2f": _threshold(
        MultiBlock,
        0.9,
        "arXiv 2508.09192; zhijie-group/Discrete-Diffusion-Forcing, less its causal cache",
        block_length=32,
        add_threshold=0.7,
        active_threshold=0.95,
        cache="dual",
    ),
    "daedal": _serial("daedal", cache="none"),
    "d3llm": DecoderSpec(
        MultiBlock,
        {"block_length": 32, "add_threshold": 0.1, "cache": "dual", "early_stop": True},
        "arXiv 2601.07568; hao-ai-lab/d3LLM",
        rule="entropy",
        fixed={"fills": True},
    ),
    "d2cache": _cached("d2", "after arXiv 2509.23094; Kamichanw/d2Cache, with the differences that its cache names"),
    "deer": DecoderSpec(
        Drafted,
        {"draft_length": MOST_DRAFTED, "early_stop": True},
        HOST_RULES["deer"].SOURCE,
        rule="deer",
        autoregressive=True,
        fixed={"settle": False},  # a token is computed before it commits
    ),
    "dkv": _cached("delayed", "arXiv 2505.15781; horseee/dKV-Cache, with the differences that its cache names"),
    "dllm-cache": _cached(
        "interval", "after arXiv 2506.06295; maomaocun/dLLM-cache, with the differences that its cache names"
    ),
    "dsb": _threshold(
        SlidingBlock,
        0.9,
        "arXiv 2602.05992; lizhuo-luo/DSB llada/generate.py",
        block_length=32,
        max_block_length=OFF,
        cache="dsb",
    ),
    "elastic-cache": replace(
        _threshold(SlidingBlock, 0.9, "after arXiv 2510.14973", block_length=16, cache="elastic"), fixed={"ends": True}
    ),
    "entropy-bound": DecoderSpec(
        Blockwise,
        {"entropy_bound": 0.1, "bound_on": "others", "block_length": 32, "cache": "dual", "early_stop": True},
        "arXiv 2505.24857; transformers EntropyBoundSampler, JetEngine scheduler.py",
    ),
    "entropy-cache": _threshold(Blockwise, 0.9, "after arXiv 2603.18489", block_length=32, cache="entropy"),
    "renoise": DecoderSpec(
        Blockwise,
        {
            "max_denoising_steps": 48,
            "entropy_bound": 0.1,
            "t_min": 0.4,
            "t_max": 0.8,
            "stability_threshold": 1,
            "confidence_threshold": 0.005,
        },
        "transformers 5.24, DiffusionGemma's EntropyBoundSampler; the bound is arXiv 2505.24857's",
        denoises=True,
        fixed=WHOLE,
    ),
    "eoser": _serial("eoser", cache="none"),
    "ete": _serial("ete", cache="none"),
    "freedave": _serial("freedave", cache="dual"),
    "indel": _serial("indel", cache="dual"),
    "klass": _serial("klass", watch="canvas", cache="none"),
    "leap": _serial("leap", cache="none"),
    "learn2pd": _serial("learn2pd", cache="none"),
    "llada2": _serial("editing", cache="dual"),
    "localleap": _serial("localleap", cache="dual"),
    "lopa": _serial("lopa", cache="dual"),
    "nap": DecoderSpec(
        Parts, {"summary_after": 0.8, "cache": "none", "early_stop": True}, HOST_RULES["nap"].SOURCE, rule="nap"
    ),
    "pc-sampler": _serial("pc-sampler", block_length=4096, cache="none"),
    "prophet": _serial("prophet", cache="none"),
    "psd": _serial("psd", cache="dual"),
    "s2d2": DecoderSpec(
        Blockwise,
        {"block_length": 16, "cache": "prefix", "early_stop": True},
        HOST_RULES["s2d2"].SOURCE,
        rule="s2d2",
        for_blocks=True,
    ),
    "saber": _serial("saber", block_length=4096, cache="none"),
    "slowfast": _threshold(
        SlowFast,
        0.9,
        "arXiv 2506.10848; LiangrunFlora/Slow-Fast-Sampling",
        block_length=256,
        slow_calls=6,
        cycle_threshold=0.3,
        stable_window=2,
        stable_spread=1.0,
        explore="all",
        lookahead=CANVAS,
        cache="dual",
    ),
    "t2m": _serial("t2m", cache="dual"),
    "tccf": DecoderSpec(
        CoarseFine,
        {"block_length": 16, "fine_length": 1, "turn": "think", "cache": "prefix", "early_stop": True},
        "arXiv 2602.09555; LuLuLuyi/TDAR, with the differences that its lanes name",
        rule="bacd",
        for_blocks=True,
    ),
    "tspd": _serial("tspd", cache="dual"),
    "wedlm": DecoderSpec(
        SlidingWindow,
        {
            "window_length": 16,
            "entropy_threshold": 0.4,
            "position_penalty": 0.02,
            "cache": "prefix",
            "early_stop": True,
        },
        "arXiv 2512.22737; Tencent/WeDLM, with the differences that its lanes name",
        rule="entropy",
        for_known_first=True,
    ),
    "window": DecoderSpec(
        Blockwise,
        {"steps": None, "cache": "window", "early_stop": True},
        "vhicrgit/Window-Diffusion, with the difference that its cache names",
        fixed=WHOLE,
    ),
    "wino": _serial("wino", block_length=128, cache="none"),
}
