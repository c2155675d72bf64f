"""Importance in two launches: a program takes the candidates of one row and one head, then one adds up the heads.

Scores of three neighbouring keys are three products, with the keys moved by one place: columns cannot be shifted. Heads
are added up in an order that does not depend on the number of candidates, as that of torch's sum may.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.checks import FLOATS, expect, expect_each
from ..common.types import PagedHeads, paged_parts
from .reference import WIDTH

LEAST = 16  # rows and columns of a product
ADDED = 32  # candidates of a program that adds up heads
NEIGHBOURS = tl.constexpr(WIDTH)


def importance(
    queries: Tensor, keys: PagedHeads, places: Tensor, candidates: Tensor, starts: Tensor, most: int
) -> Tensor:
    """D is a power of two from 16. `most` candidates of a row must fit one program: 128 do."""
    expect("queries", queries, ("T", "H", "D"), FLOATS)
    tokens, heads, head_dim = queries.shape
    numbers, _, scales, _ = paged_parts(keys, keys, head_dim, queries.dtype)
    expect("places", places, (tokens,), (torch.int64,))
    expect_each(("C",), torch.int64, candidates=candidates)
    expect("starts", starts, ("R + 1",), (torch.int32,))
    parts = queries.new_zeros((len(candidates), heads), dtype=torch.float32)
    found = parts.new_empty(len(candidates))
    _importance[(len(starts) - 1, heads)](
        queries, numbers, scales, places, candidates, starts, parts, head_dim**-0.5,
        HEADS=heads, KV_HEADS=keys.shape[2], DIM=head_dim, PAGE=keys.shape[1],
        BLOCK=max(LEAST, triton.next_power_of_2(most)), FP8=scales is not None,
        PRECISION="ieee" if queries.dtype == torch.float32 else "tf32",
    )  # fmt: skip
    _total[(triton.cdiv(len(candidates), ADDED),)](
        parts, found, len(candidates), HEADS=heads, COLUMNS=triton.next_power_of_2(heads), BLOCK=ADDED
    )
    return found


@triton.jit
def _importance(
    queries_ptr, keys_ptr, key_scales_ptr, places_ptr, candidates_ptr, starts_ptr, parts_ptr, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    FP8: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """parts_ptr [C, HEADS]: what each candidate gets from one head. PAGE: positions; FP8: keys are, with scales."""
    row, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(starts_ptr + row)
    count = tl.load(starts_ptr + row + 1) - start
    if count <= 0:
        return
    kv_head = head // (HEADS // KV_HEADS)
    at, dim = tl.arange(0, BLOCK), tl.arange(0, DIM)
    inside = at < count
    token = tl.load(candidates_ptr + start + at, mask=inside, other=0)
    spot = (token * HEADS + head)[:, None] * DIM + dim[None, :]
    q = tl.load(queries_ptr + spot, mask=inside[:, None], other=0.0)
    pooled = tl.full([BLOCK, BLOCK], float("-inf"), tl.float32)
    for neighbour in tl.static_range(NEIGHBOURS):
        beside = at + (neighbour - NEIGHBOURS // 2)
        there = (beside >= 0) & (beside < count)
        other = tl.load(candidates_ptr + start + beside, mask=there, other=0)
        place = tl.load(places_ptr + other, mask=there, other=0)
        spot = (place * KV_HEADS + kv_head)[:, None] * DIM + dim[None, :]
        k = tl.load(keys_ptr + spot, mask=there[:, None], other=0.0)
        if FP8:
            of_scales = (place // PAGE * KV_HEADS + kv_head) * PAGE + place % PAGE
            k = (k.to(tl.float32) * tl.load(key_scales_ptr + of_scales, mask=there, other=0.0)[:, None]).to(q.dtype)
        scores = tl.dot(q, k.T, input_precision=PRECISION) * scale
        pooled = tl.maximum(pooled, tl.where(there[None, :], scores, float("-inf")))
    pooled = tl.where(inside[None, :], pooled, float("-inf"))
    weights = tl.exp(pooled - tl.max(pooled, axis=1)[:, None])
    shares = weights / tl.sum(weights, axis=1)[:, None]
    total = tl.sum(tl.where(inside[:, None], shares, 0.0), axis=0)
    tl.store(parts_ptr + (start + at) * HEADS + head, total, mask=inside)


@triton.jit(do_not_specialize=["count"])
def _total(parts_ptr, found_ptr, count, HEADS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of each line of parts_ptr [count, HEADS]."""
    at, head = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, COLUMNS)
    inside = at < count
    there = inside[:, None] & (head < HEADS)[None, :]
    parts = tl.load(parts_ptr + at[:, None] * HEADS + head[None, :], mask=there, other=0.0)
    tl.store(found_ptr + at, tl.sum(parts, axis=1), mask=inside)
