"""The table of decoders: each is a lane policy, a commit rule and a cache policy with defaults and a source.

A request names a row and may override its knobs; `resolve` checks them and builds the three objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .caches import CachePolicy, Compact, Dual, NoCache, Prefix
from .knobs import CANVAS, KnobError, Knobs, check
from .policies import AsyncLane, Blockwise, LanePolicy
from .rules import CommitRule, Factor, Quota, Threshold


@dataclass(frozen=True, slots=True)
class Method:
    """A row of the table. Its knobs are the keys of `defaults`, and `RULES` besides."""

    policy: Callable[[Knobs], LanePolicy]
    defaults: Mapping[str, object]
    source: str


@dataclass(frozen=True, slots=True)
class Decoder:
    """A method with its knobs set, for a canvas of known length. `lookahead` None sees the whole canvas;
    `early_stop` ends the request once everything before its first end token is committed."""

    name: str
    policy: LanePolicy
    rule: CommitRule
    cache: Callable[[], CachePolicy]
    lookahead: int | None
    early_stop: bool


def _blockwise(knobs: Knobs) -> LanePolicy:
    return Blockwise(knobs.integer("block_length"))


def _asynclane(knobs: Knobs) -> LanePolicy:
    return AsyncLane(knobs.integer("block_length"), knobs.integer("max_lanes"), knobs.number("min_fill"))


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
    "asynclane": Method(
        policy=_asynclane,
        defaults={
            "threshold": 0.95,
            "block_length": 32,
            "cache": "compact",
            "lookahead": 32,
            "max_lanes": 4,
            "min_fill": 0.1,
            "refresh_every": 2,
        },
        source="arXiv 2606.08411, with settling and live siblings",
    ),
}

# Exactly one of these decides which positions commit; naming one replaces the method's own.
RULES: tuple[str, ...] = ("steps", "threshold", "factor")

CACHES: Mapping[str, Callable[[Knobs], CachePolicy]] = {
    "none": lambda knobs: NoCache(),
    "prefix": lambda knobs: Prefix(),
    "dual": lambda knobs: Dual(),
    "compact": lambda knobs: Compact(knobs.integer("refresh_every")),
}


def resolve(name: str, overrides: Mapping[str, object], length: int) -> Decoder:
    """The decoder `name` with `overrides`, for a canvas of `length` positions.

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
    inherited = {k: v for k, v in method.defaults.items() if not (chosen and k in RULES)}
    knobs = Knobs({**inherited, **{knob: check(knob, value) for knob, value in overrides.items()}})
    whole_canvas = knobs.get("lookahead", CANVAS) == CANVAS
    if knobs.get("cache") == "dual" and not whole_canvas:
        raise KnobError("cache", f"cache 'dual' sees the whole canvas: it needs lookahead {CANVAS!r}")
    if "refresh_every" in overrides and knobs.get("cache") != "compact":
        raise KnobError("refresh_every", f"cache {knobs.get('cache')!r} has its own refreshes, only 'compact' asks")
    if knobs.get("cache") == "compact" and "refresh_every" not in known:
        raise KnobError("cache", f"cache 'compact' is not for decoder {name!r}, which sees the whole canvas")
    cache = CACHES[knobs.text("cache")]
    return Decoder(
        name=name,
        policy=method.policy(knobs),
        rule=_rule(knobs, length),
        cache=lambda: cache(knobs),
        lookahead=None if whole_canvas else knobs.integer("lookahead"),
        early_stop=knobs.get("early_stop") is not False,
    )


def _rule(knobs: Knobs, length: int) -> CommitRule:
    if knobs.get("threshold") is not None:
        return Threshold(knobs.number("threshold"))
    if knobs.get("factor") is not None:
        return Factor(knobs.number("factor"))
    block = knobs.integer("block_length")
    blocks = -(-length // block)
    steps = knobs.get("steps")
    if steps is None:  # one token a call
        return Quota(block)
    if knobs.integer("steps") % blocks:
        raise KnobError("steps", f"steps must be a multiple of the canvas's {blocks} blocks, not {steps}")
    return Quota(knobs.integer("steps") // blocks)
