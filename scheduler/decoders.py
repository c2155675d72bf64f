"""The table of decoders: each is a lane policy, a commit rule and a cache policy with defaults and a source.

A request names a row and may override its knobs; `resolve` checks them and builds the three objects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .blocks import EXACT_CACHES, check_blocks, fitted
from .boundaries import Boundary
from .budget import BLOCK_LENGTHS
from .caches import CachePolicy, Compact, Dual, NoCache, Prefix
from .contract import Measure
from .geometry import PLAIN, Geometry
from .knobs import AUTO, CANVAS, OFF, KnobError, Knobs, check
from .policies import AsyncLane, Blockwise, LanePolicy
from .rules import CommitAtFork, CommitRule, Factor, Quota, Threshold, Timesteps

EVERYTHING = 1 << 30  # positions, more than any canvas has


@dataclass(frozen=True, slots=True)
class Method:
    """A row of the table. Its knobs are the keys of `defaults`, and `RULES` besides."""

    policy: Callable[[Knobs], LanePolicy]
    defaults: Mapping[str, object]
    source: str


@dataclass(frozen=True, slots=True)
class Decoder:
    """A method with its knobs set, for a canvas of known length."""

    name: str
    policy: LanePolicy
    rule: CommitRule
    cache: Callable[[], CachePolicy]
    lookahead: int | None  # positions behind the last lane; None: the whole canvas
    early_stop: bool  # the request ends once everything before its first end token is committed
    draft_threshold: float = math.inf  # confidence from which tokens are written ahead of all lanes
    end_threshold: float = math.inf  # confidence from which a proposed end token bounds the look-ahead
    adaptive: bool = False  # blocks are as long as the load allows
    branches: int = 0  # refine lanes that may run in slots of their own
    branch_row: int = 0  # longest row of one, less what it starts before its lane to begin with a page


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
        defaults={"threshold": 0.9, "block_length": 32, "cache": "dual", "early_stop": True},
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
}

# Exactly one of these decides which positions commit; naming one replaces the method's own.
RULES: tuple[str, ...] = ("steps", "threshold", "factor")

# What Dream's timesteps ask; other rules do not.
TIMESTEP_KNOBS = ("alg", "alg_temp", "eps")

MEASURES: Mapping[str, Measure] = {
    "origin": Measure.RANDOM,
    "maskgit_plus": Measure.PROBABILITY,
    "topk_margin": Measure.MARGIN,
    "entropy": Measure.ENTROPY,
}

COMPACT_KNOBS = ("refresh_every", "refresh_on", "reuse", "settle")

CACHES: Mapping[str, Callable[[Knobs], CachePolicy]] = {
    "none": lambda knobs: NoCache(),
    "prefix": lambda knobs: Prefix(),
    "dual": lambda knobs: Dual(),
    "compact": lambda knobs: Compact(
        knobs.integer("refresh_every"), knobs.text("refresh_on"), knobs["reuse"] is True, knobs["settle"] is True
    ),
}


def defaults_of(name: str, geometry: Geometry = PLAIN) -> Mapping[str, object]:
    """Every knob of a decoder with its default on a network of this geometry; a rule that is not its own is None."""
    return {**dict.fromkeys(RULES), **fitted(METHODS[name].defaults, geometry)}


def resolve(name: str, overrides: Mapping[str, object], length: int, geometry: Geometry = PLAIN) -> Decoder:
    """The decoder `name` with `overrides`, for a canvas of `length` positions and a network of this geometry.

    Raises `KnobError` for an unknown decoder, an unknown knob, a value out of range or knobs that exclude each other.
    """
    if name not in METHODS:
        raise KnobError("decoder", f"unknown decoder {name!r}; known: {', '.join(METHODS)}")
    method = METHODS[name]
    known = dict.fromkeys((*method.defaults, *RULES))
    for knob in overrides:
        if knob not in known:
            raise KnobError(knob, f"decoder {name!r} has no knob {knob!r}; it has: {', '.join(known)}")
    chosen = [rule for rule in RULES if rule in overrides]
    if len(chosen) > 1:
        raise KnobError(chosen[1], f"{chosen[0]!r} and {chosen[1]!r} exclude each other: give one")
    defaults = fitted(method.defaults, geometry)
    inherited = {k: v for k, v in defaults.items() if not (chosen and k in RULES)}
    knobs = Knobs({**inherited, **{knob: check(knob, value) for knob, value in overrides.items()}})
    _check_together(name, knobs, overrides, length)
    check_blocks(knobs, geometry)
    lookahead = None if knobs.get("lookahead", CANVAS) == CANVAS else knobs.integer("lookahead")
    if geometry.block and "lookahead" not in knobs:
        lookahead = 0  # nothing sees it
    adaptive = knobs.get("block_length") == AUTO
    cache = (EXACT_CACHES if geometry.block else CACHES)[knobs.text("cache")]
    isolated = knobs.get("siblings") == "isolated"
    return Decoder(
        name=name,
        policy=method.policy(knobs),
        rule=_rule(knobs, length),
        cache=lambda: cache(knobs),
        lookahead=lookahead,
        early_stop=knobs.get("early_stop") is not False,
        draft_threshold=knobs.threshold("draft_threshold"),
        end_threshold=knobs.threshold("end_threshold"),
        adaptive=adaptive,
        branches=knobs.integer("max_lanes") - 1 if isolated else 0,
        branch_row=knobs.integer("block_length") + (lookahead or 0) if isolated else 0,
    )


def _check_together(name: str, knobs: Knobs, overrides: Mapping[str, object], length: int) -> None:
    """Raises `KnobError` for knobs that make no sense together."""
    cache, lookahead = knobs.get("cache"), knobs.get("lookahead", CANVAS)
    if cache == "dual" and lookahead != CANVAS:
        raise KnobError("cache", f"cache 'dual' sees the whole canvas: it needs lookahead {CANVAS!r}")
    if cache == "compact" and "refresh_every" not in knobs:
        raise KnobError("cache", f"cache 'compact' is not for decoder {name!r}, which sees the whole canvas")
    for knob in COMPACT_KNOBS:
        if knob in overrides and cache != "compact":
            raise KnobError(knob, f"{knob} is asked by cache 'compact' alone, not by {cache!r}")
    for knob in TIMESTEP_KNOBS:
        if knob in overrides and (knobs.get("threshold"), knobs.get("factor")) != (None, None):
            raise KnobError(knob, f"{knob} goes with the rule 'steps', not with threshold or factor")
    if knobs.get("alg") == "origin" and overrides.get("alg_temp"):
        raise KnobError("alg_temp", "alg_temp goes with an alg that ranks positions, not with 'origin'")
    if knobs.get("threshold") is None and overrides.get("later_threshold", OFF) != OFF:
        raise KnobError("later_threshold", "later_threshold goes with the rule 'threshold', not with factor or steps")
    if "lookahead" in overrides and lookahead != CANVAS and knobs.integer("lookahead") > length:
        raise KnobError("lookahead", f"lookahead {lookahead} is larger than the canvas of {length} (max_tokens)")
    if knobs.get("block_length") == AUTO:
        _check_adaptive(name, knobs)
    if knobs.get("siblings") == "isolated" and (cache != "compact" or lookahead == CANVAS):
        raise KnobError("siblings", "isolated siblings need cache 'compact' and a lookahead that is a number")
    if knobs.get("boundary") == "stable" and not knobs["stable_steps"]:
        raise KnobError("stable_steps", "boundary 'stable' needs stable_steps of at least 1")


def _check_adaptive(name: str, knobs: Knobs) -> None:
    if name != "asynclane":
        raise KnobError("block_length", f"block_length {AUTO!r} is for decoder 'asynclane', not for {name!r}")
    if knobs.get("steps") is not None or knobs["siblings"] == "isolated":
        raise KnobError("block_length", f"block_length {AUTO!r} excludes steps and isolated siblings")


def _rule(knobs: Knobs, length: int) -> CommitRule:
    rule = _plain_rule(knobs, length)
    return CommitAtFork(rule) if knobs.get("siblings") == "commit" else rule


def _plain_rule(knobs: Knobs, length: int) -> CommitRule:
    if knobs.get("threshold") is not None:
        later = 0.0 if knobs.get("later_threshold", OFF) == OFF else knobs.number("later_threshold")
        return Threshold(knobs.number("threshold"), later)
    if knobs.get("factor") is not None:
        return Factor(knobs.number("factor"))
    steps = knobs.get("steps")
    if "alg" in knobs:
        calls = length if steps is None else knobs.integer("steps")
        if calls > length:
            raise KnobError("steps", f"steps {calls} exceed the canvas of {length} (max_tokens): calls would be empty")
        measure = MEASURES[knobs.text("alg")]
        return Timesteps(calls, knobs.number("eps"), measure, knobs.number("alg_temp"))
    block = knobs.integer("block_length")
    blocks = -(-length // block)
    if steps is None:  # one token a call
        return Quota(block)
    if knobs.integer("steps") % blocks:
        raise KnobError("steps", f"steps must be a multiple of the canvas's {blocks} blocks, not {steps}")
    return Quota(knobs.integer("steps") // blocks)
