"""Draws tokens of the rows that are sampled: others read one number and end.

The draw is a second pass, because noise is added to distances from the maximum (see `reference.sample`); top_k and
top_p first find the least likely token to keep, by bisection over the logits' bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.triton_noise import counter_key, mixed
from ..common.types import Draws

LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1.0e38)  # below every logit; finite, so that differences are
NO_ID = tl.constexpr(2147483647)
COLDEST = tl.constexpr(1e-20)  # a temperature that float32 can divide by
KEEP_ALL = tl.constexpr(-2147483647)
BLOCK = 4096
# Bits that the widening to float32 adds below a logit's own: they need no bisection.
_ADDED_BITS = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}


def draw(
    logits: Tensor, banned: Tensor, sums: Tensor, draws: Draws, narrowed: bool, splits: int
) -> tuple[Tensor, Tensor]:
    """Each part's largest noisy logit and its token: ([N, splits] float32, [N, splits] int32), where sampled.

    `sums` [any, N, splits] float32 begins with each part's largest logit; the rest as in `predict`.
    """
    count, vocabulary = logits.shape
    noisy = torch.empty((count, splits), dtype=torch.float32, device=logits.device)
    ids = torch.empty((count, splits), dtype=torch.int32, device=logits.device)
    cuts = ids
    if narrowed:
        cuts = torch.empty(count, dtype=torch.int32, device=logits.device)
        _cut[(count,)](
            logits, banned, sums, draws.temperature, draws.top_p, draws.top_k, draws.min_p, cuts, vocabulary,
            logits.stride(0), BANNED=len(banned), SPLITS=splits, WIDTH=triton.next_power_of_2(splits),
            ADDED_BITS=_ADDED_BITS[logits.dtype], BLOCK=BLOCK, num_warps=8,
        )  # fmt: skip
    _draw[(count, splits)](
        logits, banned, sums, draws.temperature, draws.min_p, draws.seeds, draws.positions, draws.steps, cuts, noisy,
        ids, vocabulary, logits.stride(0), BANNED=len(banned), SPLITS=splits, WIDTH=triton.next_power_of_2(splits),
        ADDED_BITS=_ADDED_BITS[logits.dtype], NARROWED=narrowed, BLOCK=BLOCK // 2, num_warps=4,
    )  # fmt: skip
    return noisy, ids


@triton.jit
def _best(sums_ptr, row, SPLITS: tl.constexpr, WIDTH: tl.constexpr):
    split = tl.arange(0, WIDTH)
    return tl.max(tl.load(sums_ptr + row * SPLITS + split, mask=split < SPLITS, other=LOWEST), axis=0)


@triton.jit
def _least(min_p_ptr, row):
    """The lowest scaled logit that min_p keeps."""
    min_p = tl.load(min_p_ptr + row)
    return tl.where(min_p > 0, tl.log(tl.where(min_p > 0, min_p, 1.0)), float("-inf"))


@triton.jit
def _load(logits_ptr, id_, vocabulary, banned_ptr, BANNED: tl.constexpr):
    x = tl.load(logits_ptr + id_, mask=id_ < vocabulary, other=float("-inf")).to(tl.float32)
    for index in tl.static_range(BANNED):
        x = tl.where(id_ == tl.load(banned_ptr + index).to(tl.int32), float("-inf"), x)
    return x


@triton.jit
def _key(x, ADDED_BITS: tl.constexpr):
    """An integer in the order of the logits."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> ADDED_BITS


@triton.jit
def _scaled(x, best, temperature):
    return tl.math.div_rn(x - best, tl.zeros_like(x) + tl.maximum(temperature, COLDEST))


@triton.jit(do_not_specialize=["stride"])
def _draw(
    logits_ptr, banned_ptr, sums_ptr, temperature_ptr, min_p_ptr, seeds_ptr, positions_ptr, steps_ptr, cuts_ptr,
    noisy_ptr, ids_ptr, vocabulary, stride, BANNED: tl.constexpr, SPLITS: tl.constexpr, WIDTH: tl.constexpr,
    ADDED_BITS: tl.constexpr, NARROWED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, split = tl.program_id(0), tl.program_id(1)
    temperature = tl.load(temperature_ptr + row)
    if temperature <= 0:
        return
    logits_ptr += row.to(tl.int64) * stride
    best = _best(sums_ptr, row, SPLITS, WIDTH)
    least = _least(min_p_ptr, row)
    cut = KEEP_ALL + 0
    if NARROWED:
        cut = tl.load(cuts_ptr + row)
    key = counter_key(tl.load(seeds_ptr + row), tl.load(positions_ptr + row), tl.load(steps_ptr + row))

    share = tl.cdiv(tl.cdiv(vocabulary, BLOCK), SPLITS) * BLOCK
    begin = split * share
    stop = tl.minimum(begin + share, vocabulary)
    leader, leader_id = float("-inf"), NO_ID + 0
    for start in range(begin, stop, BLOCK):
        id_ = start + tl.arange(0, BLOCK)
        x = _load(logits_ptr, id_, vocabulary, banned_ptr, BANNED)
        scaled = _scaled(x, best, temperature)
        bits = mixed(key + id_.to(tl.uint32) * 0x9E3779B9)
        uniform = ((bits >> 9).to(tl.float32) + 0.5) * (1.0 / (1 << 23))
        noisy = scaled - tl.log(-tl.log(uniform))
        kept = scaled >= least
        if NARROWED:
            kept = kept & (_key(x, ADDED_BITS) >= cut)
        noisy = tl.where(kept, noisy, float("-inf"))
        top = tl.max(noisy, axis=0)
        if top > leader:
            leader = top
            leader_id = tl.min(tl.where(noisy == top, id_, NO_ID), axis=0)
    tl.store(noisy_ptr + row * SPLITS + split, leader)
    tl.store(ids_ptr + row * SPLITS + split, leader_id)


@triton.jit(do_not_specialize=["stride"])
def _cut(
    logits_ptr, banned_ptr, sums_ptr, temperature_ptr, top_p_ptr, top_k_ptr, min_p_ptr, cuts_ptr, vocabulary, stride,
    BANNED: tl.constexpr, SPLITS: tl.constexpr, WIDTH: tl.constexpr, ADDED_BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The key of the least likely token that top_k and top_p keep."""
    row = tl.program_id(0)
    temperature, top_p, top_k = tl.load(temperature_ptr + row), tl.load(top_p_ptr + row), tl.load(top_k_ptr + row)
    cut = KEEP_ALL + 0
    by_rank = (top_k > 0) & (top_k < vocabulary)
    if (temperature > 0) & (by_rank | (top_p < 1)):
        logits_ptr += row.to(tl.int64) * stride
        best = _best(sums_ptr, row, SPLITS, WIDTH)
        least = _least(min_p_ptr, row)
        lowest = _key(tl.full([1], float("-inf"), tl.float32), ADDED_BITS)
        floor = tl.max(lowest, axis=0)
        ceiling = tl.max(_key(tl.zeros([1], tl.float32) + best, ADDED_BITS), axis=0)
        if by_rank:
            cut = _bisect(
                logits_ptr, banned_ptr, vocabulary, best, temperature, least, floor, ceiling, top_k.to(tl.float32),
                True, BANNED, ADDED_BITS, BLOCK,
            )  # fmt: skip
            floor = cut
        if top_p < 1:
            mass = _mass(
                logits_ptr, banned_ptr, vocabulary, best, temperature, least, floor, False, BANNED, ADDED_BITS, BLOCK
            )
            cut = _bisect(
                logits_ptr, banned_ptr, vocabulary, best, temperature, least, floor, ceiling, mass * top_p, False,
                BANNED, ADDED_BITS, BLOCK,
            )  # fmt: skip
    tl.store(cuts_ptr + row, cut)


@triton.jit
def _bisect(
    logits_ptr, banned_ptr, vocabulary, best, temperature, least, floor, ceiling, wanted, COUNT: tl.constexpr,
    BANNED: tl.constexpr, ADDED_BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest key from `floor` to `ceiling` whose tokens from it upwards hold at least `wanted`; else `floor`."""
    low, high = floor, ceiling
    while low < high:
        # Half of an even or odd distance upwards, without a sum that overflows.
        middle = high - ((high.to(tl.int64) - low.to(tl.int64)) >> 1).to(tl.int32)
        total = _mass(
            logits_ptr, banned_ptr, vocabulary, best, temperature, least, middle, COUNT, BANNED, ADDED_BITS, BLOCK
        )
        low = tl.where(total >= wanted, middle, low)
        high = tl.where(total >= wanted, high, middle - 1)
    return low


@triton.jit
def _mass(
    logits_ptr, banned_ptr, vocabulary, best, temperature, least, key, COUNT: tl.constexpr, BANNED: tl.constexpr,
    ADDED_BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The number of tokens at `key` or above, or their weight."""
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocabulary, BLOCK):
        id_ = start + tl.arange(0, BLOCK)
        x = _load(logits_ptr, id_, vocabulary, banned_ptr, BANNED)
        scaled = _scaled(x, best, temperature)
        kept = (_key(x, ADDED_BITS) >= key) & (scaled >= least)
        if COUNT:
            total += tl.where(kept, 1.0, 0.0)
        else:
            total += tl.where(kept, tl.exp(scaled), 0.0)
    return tl.sum(total, axis=0)
