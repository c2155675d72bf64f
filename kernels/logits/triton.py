"""Biases, masks of the vocabulary, caps and temperatures, in launches whose grids depend on no number in them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.checks import FLOATS, expect, expect_each, expect_logits
from ..common.triton_launch import await_previous, chained
from ..predict.triton_sampling import NO_ID

SHARE = 32  # programs of a bias, which take turns at its positions
BLOCK = 128  # entries at a time
TOKENS = 1024  # of a program that restricts, or that caps
LANES = 1024  # columns that a program tempers together
SPLITS = 16  # programs that share a row which is tempered: so many that 256 rows fill a GPU
LEAST = -1e38  # below every logit; finite, so that differences are
STRAIGHT = tl.constexpr(0.25)  # below, tanh is a polynomial


def adjust(
    logits: Tensor, begins: Tensor, ends: Tensor, entry_starts: Tensor, ids: Tensor, deltas: Tensor, factors: Tensor
) -> None:
    expect_logits(logits)
    expect_each((len(begins),), torch.int32, begins=begins, ends=ends)
    expect("entry_starts", entry_starts, (len(begins) + 1,), (torch.int32,))
    expect("ids", ids, ("E",), (torch.int32,))
    expect_each(tuple(ids.shape), torch.float32, deltas=deltas, factors=factors)
    if len(begins):
        bounds, entries = (begins, ends, entry_starts), (ids, deltas, factors)
        grid = (len(begins), SHARE)
        _adjust[grid](logits, *bounds, *entries, logits.stride(0), SHARE=SHARE, BLOCK=BLOCK, num_warps=1)


@triton.jit(do_not_specialize=["stride"])
def _adjust(
    logits_ptr,
    begins_ptr,
    ends_ptr,
    starts_ptr,
    ids_ptr,
    deltas_ptr,
    factors_ptr,
    stride,
    SHARE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    bias = tl.program_id(0)
    first, last = tl.load(starts_ptr + bias), tl.load(starts_ptr + bias + 1)
    begin, end = tl.load(begins_ptr + bias).to(tl.int64), tl.load(ends_ptr + bias).to(tl.int64)
    for row in range(begin + tl.program_id(1), end, SHARE):
        row_ptr = logits_ptr + row * stride
        for start in range(first, last, BLOCK):
            entry = start + tl.arange(0, BLOCK)
            inside = entry < last
            id_ = tl.load(ids_ptr + entry, mask=inside, other=0)
            delta = tl.load(deltas_ptr + entry, mask=inside, other=0.0)
            factor = tl.load(factors_ptr + entry, mask=inside, other=1.0)
            logit = tl.load(row_ptr + id_, mask=inside, other=0.0).to(tl.float32)
            logit = tl.where(logit > 0, tl.math.div_rn(logit, factor), logit * factor)
            tl.store(row_ptr + id_, (logit + delta).to(logits_ptr.dtype.element_ty), mask=inside)


def restrict(logits: Tensor, places: Tensor, words: Tensor) -> None:
    expect_logits(logits)
    expect("places", places, ("R",), (torch.int32,))
    expect("words", words, (len(places), "W"), (torch.int32,))
    vocabulary = logits.shape[1]
    if words.shape[1] * 32 < vocabulary:
        raise ValueError(f"{words.shape[1]} words are no mask of {vocabulary} tokens")
    if len(places):
        grid = (len(places), triton.cdiv(vocabulary, TOKENS))
        _restrict[grid](logits, places, words, logits.stride(0), vocabulary, words.shape[1], BLOCK=TOKENS)


@triton.jit(do_not_specialize=["stride", "vocabulary", "width"])
def _restrict(logits_ptr, places_ptr, words_ptr, stride, vocabulary, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(places_ptr + row).to(tl.int64)
    if place >= 0:
        token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = token < vocabulary
        word = tl.load(words_ptr + row * width + token // 32, mask=inside, other=-1)
        forbidden = (word >> (token % 32) & 1) == 0
        tl.store(logits_ptr + place * stride + token, float("-inf"), mask=inside & forbidden)


def soft_cap(logits: Tensor, cap: float) -> Tensor:
    expect_logits(logits)
    count, vocabulary = logits.shape
    out = torch.empty((count, vocabulary), dtype=torch.float32, device=logits.device)
    if count:
        _soft_cap[(count, triton.cdiv(vocabulary, TOKENS))](
            logits, out, cap, 1 / cap, vocabulary, logits.stride(0), BLOCK=TOKENS, **chained(out)
        )
    return out


@triton.jit
def _soft_cap(logits_ptr, out_ptr, cap, shrink, vocabulary, stride, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    await_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocabulary
    x = tl.load(logits_ptr + row * stride + token, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * vocabulary + token, _tanh(x * shrink) * cap, mask=inside)


@triton.jit
def _tanh(x):
    """Near 0 it is its series up to x ** 9: the quotient would lose the last bits there."""
    decayed = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - decayed) / (1.0 + decayed)
    square = x * x
    near = square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835))))
    return tl.where(tl.abs(x) < STRAIGHT, x + x * near, tl.where(x < 0, -far, far))


def temper(logits: Tensor, temperatures: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A pass divides, and sums a row's parts; another one writes the shares."""
    expect("logits", logits, ("N", "V"), (torch.float32,), contiguous=False)
    expect_logits(logits)
    count, vocabulary = logits.shape
    expect("temperatures", temperatures, (count,), (torch.float32,))
    if dtype not in FLOATS:
        raise ValueError(f"dtype must be a type of floating-point numbers, not {dtype}")
    shares = torch.empty((count, vocabulary), dtype=dtype, device=logits.device)
    likeliest = torch.empty(count, dtype=torch.int64, device=logits.device)
    bests, sums = torch.empty((2, count, SPLITS), dtype=torch.float32, device=logits.device)
    ids = torch.empty((count, SPLITS), dtype=torch.int32, device=logits.device)
    if count:
        parts = bests, sums, ids
        sizes = vocabulary, logits.stride(0)
        common = {"LANES": LANES, "SPLITS": SPLITS, **chained(logits)}
        least = max(LEAST, torch.finfo(dtype).min)
        # The first pass takes `shares` for its type alone.
        _temper[(count, SPLITS)](logits, temperatures, shares, *parts, *sizes, LEAST=least, **common)
        _share[(count, SPLITS)](logits, shares, likeliest, *parts, *sizes, **common)
    return shares, likeliest


@triton.jit
def _temper(
    logits_ptr, temperatures_ptr, shares_ptr, bests_ptr, sums_ptr, ids_ptr, vocabulary, stride, LEAST: tl.constexpr,
    LANES: tl.constexpr, SPLITS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """A part of a row: its quotients, the largest of them, its token, and the sum of the weights relative to it."""
    await_previous(CHAINED)
    row, split = tl.program_id(0), tl.program_id(1)
    kind = shares_ptr.dtype.element_ty
    logits_ptr += row.to(tl.int64) * stride
    temperature = tl.load(temperatures_ptr + row)
    temperature = tl.where(temperature > 0, temperature, 1.0)
    share = tl.cdiv(tl.cdiv(vocabulary, LANES), SPLITS) * LANES
    begin = split * share
    stop = tl.minimum(begin + share, vocabulary)
    best, best_id = tl.full([], LEAST, tl.float32), NO_ID + 0
    weights = tl.zeros([LANES], tl.float32)
    for start in range(begin, stop, LANES):
        id_ = start + tl.arange(0, LANES)
        x = tl.load(logits_ptr + id_, mask=id_ < stop, other=float("-inf"))
        x = tl.math.div_rn(x, tl.zeros_like(x) + temperature)
        tl.store(logits_ptr + id_, x, mask=id_ < stop)
        top = tl.max(x, axis=0)
        if top > best:
            best_id = tl.min(tl.where(x == top, id_, NO_ID), axis=0)
            weights *= tl.exp(_rounded(best, kind) - _rounded(top, kind))
            best = top
        weights += tl.exp(_rounded(x, kind) - _rounded(best, kind))
    spot = row * SPLITS + split
    tl.store(bests_ptr + spot, best)
    tl.store(sums_ptr + spot, tl.sum(weights, axis=0))
    tl.store(ids_ptr + spot, best_id)


@triton.jit
def _share(
    logits_ptr, shares_ptr, likeliest_ptr, bests_ptr, sums_ptr, ids_ptr, vocabulary, stride, LANES: tl.constexpr,
    SPLITS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """A part of a row: its shares of the sum over all parts."""
    await_previous(CHAINED)
    row, split = tl.program_id(0), tl.program_id(1)
    kind = shares_ptr.dtype.element_ty
    part = row * SPLITS + tl.arange(0, SPLITS)
    bests = tl.load(bests_ptr + part)
    best = tl.max(bests, axis=0)
    if split == 0:
        token = tl.min(tl.where(bests == best, tl.load(ids_ptr + part), NO_ID), axis=0)
        # A row of NaN has no likeliest token, but its number must not lead out of memory.
        tl.store(likeliest_ptr + row, tl.where(token == NO_ID, 0, token).to(tl.int64))
    best = _rounded(best, kind)
    total = tl.sum(tl.load(sums_ptr + part) * tl.exp(_rounded(bests, kind) - best), axis=0)
    logits_ptr += row.to(tl.int64) * stride
    shares_ptr += row.to(tl.int64) * vocabulary
    share = tl.cdiv(tl.cdiv(vocabulary, LANES), SPLITS) * LANES
    begin = split * share
    stop = tl.minimum(begin + share, vocabulary)
    for start in range(begin, stop, LANES):
        id_ = start + tl.arange(0, LANES)
        x = tl.load(logits_ptr + id_, mask=id_ < stop, other=float("-inf"))
        tl.store(shares_ptr + id_, (tl.exp(_rounded(x, kind) - best) / total).to(kind), mask=id_ < stop)


@triton.jit
def _rounded(x, kind: tl.constexpr):
    return x.to(kind).to(tl.float32)
