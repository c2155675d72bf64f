"""What a block-causal network changes of a decoder: some defaults, and what makes no sense where nothing grows stale.

Keys and values of a block are exact once all of its tokens were final when they were computed, since nothing behind it
is seen. So `prefix` and `compact` are one cache, which never refreshes, and a block by itself is all that a serial
decoder has to compute. `fast-dllm` is then what SDAR and LLaDA2 publish as their own sampler: blocks in order, and in
each step every position above the threshold, or else the best one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .attention_pattern import AttentionPattern
from .cache import CachePolicy, Compact, NoCache
from .params import AUTO, CANVAS, ParamError, Params

EXACT_CACHES: Mapping[str, Callable[[Params], CachePolicy]] = {
    "none": lambda knobs: NoCache(),
    "prefix": lambda knobs: Compact(refresh_every=0),
    "compact": lambda knobs: Compact(refresh_every=0, reuse=knobs["reuse"] is True),
}


# What is drafted behind a block binds that block, which cannot see it. On 150 code problems drafts above 0.995 left
# 0.90 right, above 0.999 0.97, above 0.9997 all, at nearly the same number of calls (7.8; without drafts 9.6).
DRAFT_THRESHOLD = 0.9998

# AdaBlock's for Dream, arXiv 2509.26432.
SHIFTED_DELIMITERS: Mapping[str, object] = {"delimiters": "newlines", "delimiter_threshold": 0.5}


def fitted(defaults: Mapping[str, object], pattern: AttentionPattern) -> Mapping[str, object]:
    """A decoder's defaults on a network. With blocks, a lane is one of them: a position in a second one could commit
    before the first is full, which cannot see it and then says something else (tiny-sdar at 32 positions a lane: 0.71
    of the code problems right, at 16 all). Serial decoders, which do not look ahead, cache what is behind them."""
    fit = dict(defaults)
    if pattern.logit_shift and "delimiter_threshold" in defaults:
        fit |= SHIFTED_DELIMITERS
    if not pattern.block_size:
        return fit
    if defaults.get("lookahead", CANVAS) == CANVAS:
        if defaults.get("cache") in (*EXACT_CACHES, "dual"):  # one that is a method of its own is refused
            fit["cache"] = "prefix"
        fit |= {knob: 0 for knob in ("lookahead",) if knob in defaults}
    if "block_length" in defaults:
        fit["block_length"] = pattern.block_size
    if "draft_threshold" in defaults:
        fit["draft_threshold"] = DRAFT_THRESHOLD
    return fit


def check_blocks(knobs: Params, pattern: AttentionPattern) -> None:
    """Raises `ParamError` for what a block-causal network cannot do, or never needs."""
    if not pattern.block_size:
        return
    if "block_length" not in knobs:
        raise ParamError(
            "decoder",
            "this decoder fills the whole canvas in any order, and no position of this model sees behind its block:"
            " use 'fast-dllm'",
        )
    if "delimiters" in knobs:
        raise ParamError(
            "decoder",
            f"decoder 'adablock' chooses how long a block is, and this model's have {pattern.block_size} positions: use"
            " 'fast-dllm'",
        )
    if knobs.get("cache") == "dual":
        raise ParamError(
            "cache",
            "cache 'dual' shows a block what lies behind it, which this model never sees: use 'prefix', which is exact",
        )
    if knobs.get("cache", "none") not in EXACT_CACHES:
        raise ParamError(
            "cache",
            f"cache {knobs['cache']!r} is for models that see the whole canvas, where keys grow stale: use 'prefix',"
            " which is exact",
        )
    if knobs.get("refresh_every"):
        raise ParamError(
            "refresh_every", "refresh_every must be 0: keys of this model's finished blocks are exact, none grow stale"
        )
    if knobs.get("settle") is False:
        raise ParamError("settle", "settle must be true: only keys of final tokens stay exact in this model")
    if knobs.get("siblings") == "isolated":
        raise ParamError(
            "siblings", "siblings 'isolated' is for models that see the whole canvas: a lane sees none behind its block"
        )
    length = knobs.get("block_length", AUTO)
    if length != AUTO and knobs.integer("block_length") % pattern.block_size:
        raise ParamError(
            "block_length",
            f"block_length must be a multiple of this model's block of {pattern.block_size}, not {length}",
        )
    if "fine_length" in knobs and pattern.block_size % knobs.integer("fine_length"):
        raise ParamError(
            "fine_length",
            f"fine_length must divide this model's block of {pattern.block_size}, not {knobs['fine_length']}",
        )
