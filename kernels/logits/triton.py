"""Biases and masks of the vocabulary, in launches whose grids do not depend on the numbers in them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.checks import expect, expect_each, expect_logits

SHARE = 32  # programs of a bias, which take turns at its positions
BLOCK = 128  # entries at a time
TOKENS = 1024  # of a program that restricts


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
