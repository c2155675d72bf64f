"""Reads the logits once, in the type they come in: best and second best token, confidence and entropy of each row.

A pass over [N, V] is bound by memory as long as an element costs about a dozen instructions. So what changes with a
new maximum, a new runner-up or a banned id is done for a whole block, and only in the few blocks that need it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.checks import expect, expect_each, expect_logits
from ..common.triton_launch import await_previous, chained
from ..common.types import Draws, Prediction
from .triton_sampling import LOG2E, LOWEST, NO_ID, draw

LN2 = tl.constexpr(0.6931471805599453)
LANES = 1024  # columns of a block; each thread's share of a row of a block is one wide load
DEPTH = 1  # rows of a block
WARPS = 4
REGISTERS = 64  # of a thread, so that eight programs share a multiprocessor
DTYPES = torch.int64, torch.float64, torch.int64, torch.float64, torch.float64, torch.float32  # of a `Prediction`
PROGRAMS = 4096  # enough to fill the multiprocessors several times over
MOST_SPLITS = 32
FIXED_SPLITS = 8  # where the bits of a row may not depend on the number of rows


def predict(
    logits: Tensor,
    banned: Tensor,
    end_ids: Tensor,
    endless: Tensor,
    draws: Draws | None = None,
    narrowed: bool = True,
    fixed: bool = False,
    splits: int | None = None,
) -> Prediction:
    """As the reference, for fp16, bf16 or float32. `splits`: programs that share a row, for tuning.

    `banned` and `end_ids` are few ids, each compiled in as a count. `narrowed` False saves a launch.
    """
    expect_logits(logits)
    count, vocabulary = logits.shape
    expect_each(("any",), torch.int64, banned=banned, end_ids=end_ids)
    expect("endless", endless, (count,), (torch.bool,))
    if draws is not None:
        temperature, top_p, top_k, min_p, *counters = draws
        expect_each((count,), torch.float32, temperature=temperature, top_p=top_p, min_p=min_p)
        expect_each((count,), torch.int32, top_k=top_k)
        expect_each((count,), torch.int64, **dict(zip(("seeds", "positions", "steps"), counters, strict=True)))
    device = logits.device
    splits = splits or (FIXED_SPLITS if fixed else vocabulary_splits(count, vocabulary))
    sums = torch.empty((6, count, splits), dtype=torch.float32, device=device)
    ids = torch.empty((2, count, splits), dtype=torch.int32, device=device)
    out = Prediction(*(torch.empty(count, dtype=dtype, device=device) for dtype in DTYPES))
    if not count:
        return out
    _scan[(count, splits)](
        logits, banned, end_ids, endless, sums, ids, count, vocabulary, logits.stride(0), BANNED=len(banned),
        ENDS=len(end_ids), DEPTH=DEPTH, LANES=LANES, SPLITS=splits, num_warps=WARPS, maxnreg=REGISTERS, **chained(sums),
    )  # fmt: skip
    drawn = sums, ids, sums
    if draws is not None:
        drawn = (*draw(logits, banned, sums, draws, narrowed, splits), draws.temperature)
    _conclude[(count,)](
        logits, end_ids, endless, sums, ids, *drawn, *out, count, logits.stride(0), ENDS=len(end_ids), SPLITS=splits,
        WIDTH=triton.next_power_of_2(splits), DRAWN=draws is not None, num_warps=1, **chained(sums),
    )  # fmt: skip
    return out


def vocabulary_splits(count: int, vocabulary: int) -> int:
    """Programs that share a row: more of them the fewer rows there are."""
    splits = 1
    blocks = triton.cdiv(vocabulary, DEPTH * LANES)
    while splits < MOST_SPLITS and count * splits < PROGRAMS and splits * 2 <= blocks:
        splits *= 2
    return splits


@triton.jit(do_not_specialize=["count"])
def _scan(
    logits_ptr, banned_ptr, ends_ptr, endless_ptr, sums_ptr, ids_ptr, count, vocabulary, stride, BANNED: tl.constexpr,
    ENDS: tl.constexpr, DEPTH: tl.constexpr, LANES: tl.constexpr, SPLITS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """One part of a row: maximum, ties with it, weights of the others and their sum with exponents; runners-up."""
    await_previous(CHAINED)
    row, split = tl.program_id(0), tl.program_id(1)
    BLOCK: tl.constexpr = DEPTH * LANES
    logits_ptr += row.to(tl.int64) * stride
    endless = tl.load(endless_ptr + row) != 0
    lane = tl.arange(0, DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    share = tl.cdiv(tl.cdiv(vocabulary, BLOCK), SPLITS) * BLOCK
    begin = split * share
    stop = tl.minimum(begin + share, vocabulary)

    best, second, other = LOWEST + 0.0, LOWEST + 0.0, LOWEST + 0.0  # other: the best that is no end id
    best_id, other_id = NO_ID + 0, NO_ID + 0
    ties, past, past_turns = 0.0, 0.0, 0.0  # past: weights of entries that were the maximum once
    # Each thread sums its own columns, so that a block costs one exchange between threads, for its maximum.
    weights = tl.zeros([LANES], tl.float32)
    turns = tl.zeros([LANES], tl.float32)  # weights times their binary exponents
    ahead = tl.load(logits_ptr + begin + lane, mask=begin + lane < stop, other=float("-inf"))
    for start in range(begin, stop, BLOCK):
        id_ = start + lane
        x = ahead.to(tl.float32)
        # The next block is on its way while this one is computed.
        ahead = tl.load(logits_ptr + id_ + BLOCK, mask=id_ + BLOCK < stop, other=float("-inf"))
        for index in tl.static_range(BANNED):
            skipped = tl.load(banned_ptr + index).to(tl.int32)
            if (skipped >= start) & (skipped < start + BLOCK):
                x = tl.where(id_ == skipped, float("-inf"), x)
        top = tl.max(tl.max(x, axis=0), axis=0)
        if top > second:
            top_id = tl.min(tl.min(tl.where(x == top, id_, NO_ID), axis=0), axis=0)
            rest = tl.max(tl.max(tl.where(id_ == top_id, float("-inf"), x), axis=0), axis=0)
            second = tl.maximum(tl.minimum(best, top), tl.maximum(second, rest))
            best_id = tl.where(top > best, top_id, best_id)
        if ENDS > 0:
            if endless & (top > other):
                kept = x
                for index in tl.static_range(ENDS):
                    kept = tl.where(id_ == tl.load(ends_ptr + index).to(tl.int32), float("-inf"), kept)
                kept_top = tl.max(tl.max(kept, axis=0), axis=0)
                kept_id = tl.min(tl.min(tl.where(kept == kept_top, id_, NO_ID), axis=0), axis=0)
                other_id = tl.where(kept_top > other, kept_id, other_id)
                other = tl.maximum(kept_top, other)
        if top >= best:
            turn = (best - top) * LOG2E
            shrink = tl.exp2(turn)
            turns = shrink * (turns + turn * weights)
            weights = shrink * weights
            deposed = past + tl.where(top > best, ties, 0.0)
            past_turns = shrink * (past_turns + turn * deposed)
            past = shrink * deposed
            equal = x == top
            ties = tl.where(top > best, 0.0, ties) + tl.sum(tl.sum(equal.to(tl.float32), axis=0), axis=0)
            best = top
            x = tl.where(equal, float("-inf"), x)
        turn_of = tl.maximum((x - best) * LOG2E, -200.0)  # finite: 0 times it is 0
        weight = tl.exp2(turn_of)
        weights += tl.sum(weight, axis=0)
        turns += tl.sum(weight * turn_of, axis=0)

    spot = row * SPLITS + split
    plane = count * SPLITS
    tl.store(sums_ptr + spot, best)
    tl.store(sums_ptr + plane + spot, ties)
    tl.store(sums_ptr + 2 * plane + spot, past + tl.sum(weights, axis=0))
    tl.store(sums_ptr + 3 * plane + spot, past_turns + tl.sum(turns, axis=0))
    tl.store(sums_ptr + 4 * plane + spot, second)
    tl.store(sums_ptr + 5 * plane + spot, other)
    tl.store(ids_ptr + spot, best_id)
    tl.store(ids_ptr + plane + spot, other_id)


@triton.jit
def _lowest(chosen, ids):
    """The lowest of the chosen ids; 0 if there is none, as in a row of NaN, whose ids must not lead out of memory."""
    id_ = tl.min(tl.where(chosen, ids, NO_ID), axis=0)
    return tl.where(id_ == NO_ID, 0, id_)


@triton.jit(do_not_specialize=["count", "stride"])
def _conclude(
    logits_ptr, ends_ptr, endless_ptr, sums_ptr, ids_ptr, drawn_ptr, drawn_ids_ptr, temperature_ptr, proposals_ptr,
    confidence_ptr, tokens_ptr, commit_probability_ptr, margin_ptr, entropy_ptr, count, stride, ENDS: tl.constexpr,
    SPLITS: tl.constexpr, WIDTH: tl.constexpr, DRAWN: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Add up the parts of a row, and find the token that it proposes and the one that it may commit."""
    await_previous(CHAINED)
    row = tl.program_id(0)
    split = tl.arange(0, WIDTH)
    inside = split < SPLITS
    spot = row * SPLITS + split
    plane = count * SPLITS
    bests = tl.load(sums_ptr + spot, mask=inside, other=LOWEST)
    ties = tl.load(sums_ptr + plane + spot, mask=inside, other=0.0)
    weights = tl.load(sums_ptr + 2 * plane + spot, mask=inside, other=0.0)
    turns = tl.load(sums_ptr + 3 * plane + spot, mask=inside, other=0.0)
    seconds = tl.load(sums_ptr + 4 * plane + spot, mask=inside, other=LOWEST)
    others = tl.load(sums_ptr + 5 * plane + spot, mask=inside, other=LOWEST)
    ids = tl.load(ids_ptr + spot, mask=inside, other=NO_ID)

    best = tl.max(bests, axis=0)
    leads = bests == best
    turn = (bests - best) * LOG2E
    shrink = tl.exp2(turn)
    tied = tl.sum(tl.where(leads, ties, 0.0), axis=0)
    weight = tl.sum(tl.where(leads, weights, shrink * (weights + ties)), axis=0)
    moment = tl.sum(shrink * (turns + turn * (weights + ties)), axis=0)
    tied = tl.where(tied > 0, tied, float("nan"))  # a row of NaN has no maximum, and no confidence that passes a test
    total = tied.to(tl.float64) + weight.to(tl.float64)
    second = tl.where(tied > 1, best, tl.max(tl.where(leads, seconds, bests), axis=0))
    token = _lowest(leads, ids)
    chosen = best
    if DRAWN:
        if tl.load(temperature_ptr + row) > 0:
            noisy = tl.load(drawn_ptr + spot, mask=inside, other=float("-inf"))
            drawn_ids = tl.load(drawn_ids_ptr + spot, mask=inside, other=NO_ID)
            token = _lowest(noisy == tl.max(noisy, axis=0), drawn_ids)
            chosen = tl.load(logits_ptr + row.to(tl.int64) * stride + token).to(tl.float32)
    chance = tl.exp(chosen.to(tl.float64) - best.to(tl.float64)) / total
    tl.store(proposals_ptr + row, token.to(tl.int64))
    tl.store(confidence_ptr + row, chance)
    if ENDS > 0:
        ends = tl.load(endless_ptr + row).to(tl.int32)
        is_end = 0
        for index in tl.static_range(ENDS):
            is_end += (token == tl.load(ends_ptr + index).to(tl.int32)).to(tl.int32)
        if (ends != 0) & (is_end > 0):
            other = tl.max(others, axis=0)
            other_ids = tl.load(ids_ptr + plane + spot, mask=inside, other=NO_ID)
            token = _lowest(others == other, other_ids)
            chance = tl.exp(other.to(tl.float64) - best.to(tl.float64)) / total
    tl.store(tokens_ptr + row, token.to(tl.int64))
    tl.store(commit_probability_ptr + row, chance)
    tl.store(margin_ptr + row, (1 - tl.exp(second.to(tl.float64) - best.to(tl.float64))) / total)
    mass = tied + weight
    tl.store(entropy_ptr + row, tl.log(mass) - LN2 * moment / mass)
