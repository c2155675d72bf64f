"""Decides which positions commit and writes them to the canvases in one launch, with no size read by the host."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.checks import expect, expect_each
from ..common.triton_launch import await_previous, chained
from ..common.types import SpanRules

CHUNK = 64  # positions ranked at a time
NEVER = tl.constexpr(1 << 30)  # a rank beyond every span
WRITTEN = 256  # positions of a program that writes tokens


def write_tokens(canvases: Tensor, slots: Tensor, positions: Tensor, tokens: Tensor) -> None:
    expect("canvases", canvases, ("slots", "length"), (torch.int64,))
    expect("tokens", tokens, ("T",), (torch.int32,))
    expect_each((len(tokens),), torch.int64, slots=slots, positions=positions)
    if len(tokens):
        _write_tokens[(triton.cdiv(len(tokens), WRITTEN),)](
            canvases, slots, positions, tokens, len(tokens), canvases.stride(0), BLOCK=WRITTEN
        )


@triton.jit(do_not_specialize=["count"])
def _write_tokens(canvases_ptr, slots_ptr, positions_ptr, tokens_ptr, count, stride, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(tokens_ptr + at, mask=at < count, other=-1)
    written = token >= 0
    place = tl.load(slots_ptr + at, mask=written, other=0) * stride + tl.load(positions_ptr + at, mask=written, other=0)
    tl.store(canvases_ptr + place, token.to(tl.int64), mask=written)


def transfer(confidence: Tensor, open_: Tensor, rules: SpanRules) -> Tensor:
    """Ranks are counted, so a span of n positions costs n * n comparisons of one program."""
    expect("open_", open_, ("N",), (torch.bool,))
    _require(len(open_), confidence, rules)
    chosen = torch.zeros_like(open_)
    ranks = torch.empty(len(open_), dtype=torch.int32, device=open_.device)
    if len(rules.sure):
        _transfer[(len(rules.sure),)](
            confidence, open_, *_numbers(rules), ranks, chosen, BLOCK=CHUNK, BUDGETS=rules.budget is not None
        )
    return chosen


def commit(
    canvases: Tensor,
    slots: Tensor,
    positions: Tensor,
    tokens: Tensor,
    confidence: Tensor,
    mask_id: int,
    rules: SpanRules,
) -> Tensor:
    expect("canvases", canvases, ("slots", "length"), (torch.int64,))
    expect("tokens", tokens, ("N",), (torch.int64,))
    expect_each((len(tokens),), torch.int64, slots=slots, positions=positions)
    _require(len(tokens), confidence, rules)
    current = torch.empty_like(tokens)
    ranks = torch.empty(len(tokens), dtype=torch.int32, device=tokens.device)
    if len(rules.sure):
        _commit[(len(rules.sure),)](
            canvases, slots, positions, tokens, confidence, mask_id, *_numbers(rules), ranks, current,
            canvases.stride(0), BLOCK=CHUNK, BUDGETS=rules.budget is not None, **chained(current),
        )  # fmt: skip
    return current


def _require(count: int, confidence: Tensor, rules: SpanRules) -> None:
    spans = rules.sure.numel()
    expect("confidence", confidence, (count,), (torch.float64,))
    expect_each((spans + 1,), torch.int32, starts=rules.starts)
    expect_each((spans,), torch.int32, sure=rules.sure)
    expect_each((spans,), torch.float32, threshold=rules.threshold, factor=rules.factor)
    expect_each((spans,), torch.bool, last_free=rules.last_free)
    if rules.budget is not None:
        expect_each((spans,), torch.float32, budget=rules.budget)
        if rules.inclusive is None:
            raise ValueError("budget needs inclusive")
        expect_each((spans,), torch.bool, inclusive=rules.inclusive)


def _numbers(rules: SpanRules) -> tuple[Tensor, ...]:
    """The numbers of all rules. Budgets that are not given are not read: any tensor stands in for them."""
    budget, inclusive = (rules.sure if part is None else part for part in (rules.budget, rules.inclusive))
    return rules.starts, rules.sure, rules.threshold, rules.factor, rules.last_free, budget, inclusive


@triton.jit
def _transfer(
    confidence_ptr, open_ptr, starts_ptr, sure_ptr, threshold_ptr, factor_ptr, last_free_ptr, budget_ptr, inclusive_ptr,
    ranks_ptr, chosen_ptr, BLOCK: tl.constexpr, BUDGETS: tl.constexpr,
):  # fmt: skip
    span = tl.program_id(0)
    start, end = tl.load(starts_ptr + span), tl.load(starts_ptr + span + 1)
    count = 0
    for first in range(start, end, BLOCK):
        at = first + tl.arange(0, BLOCK)
        is_open = tl.load(open_ptr + at, mask=at < end, other=0).to(tl.int1)
        tl.store(ranks_ptr + at, tl.where(is_open, 0, -1), mask=at < end)
        count += tl.sum(is_open.to(tl.int32), axis=0)
    failing = _first_failing(
        confidence_ptr, ranks_ptr, start, end, count, tl.load(sure_ptr + span), tl.load(threshold_ptr + span),
        tl.load(factor_ptr + span), tl.load(last_free_ptr + span), budget_ptr + span, inclusive_ptr + span, BLOCK,
        BUDGETS,
    )  # fmt: skip
    for first in range(start, end, BLOCK):
        at = first + tl.arange(0, BLOCK)
        rank = tl.load(ranks_ptr + at, mask=at < end, other=-1)
        tl.store(chosen_ptr + at, (rank > 0) & (rank < failing), mask=at < end)


@triton.jit(do_not_specialize=["mask_id"])
def _commit(
    canvases_ptr, slots_ptr, positions_ptr, tokens_ptr, confidence_ptr, mask_id, starts_ptr, sure_ptr, threshold_ptr,
    factor_ptr, last_free_ptr, budget_ptr, inclusive_ptr, ranks_ptr, current_ptr, canvas_stride, BLOCK: tl.constexpr,
    BUDGETS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    await_previous(CHAINED)
    span = tl.program_id(0)
    start, end = tl.load(starts_ptr + span), tl.load(starts_ptr + span + 1)
    count = 0
    for first in range(start, end, BLOCK):
        at = first + tl.arange(0, BLOCK)
        place = tl.load(slots_ptr + at, mask=at < end, other=0).to(tl.int64) * canvas_stride
        place += tl.load(positions_ptr + at, mask=at < end, other=0)
        present = tl.load(canvases_ptr + place, mask=at < end, other=-1)
        is_open = (present == mask_id) & (at < end)
        tl.store(current_ptr + at, present, mask=at < end)
        tl.store(ranks_ptr + at, tl.where(is_open, 0, -1), mask=at < end)
        count += tl.sum(is_open.to(tl.int32), axis=0)
    failing = _first_failing(
        confidence_ptr, ranks_ptr, start, end, count, tl.load(sure_ptr + span), tl.load(threshold_ptr + span),
        tl.load(factor_ptr + span), tl.load(last_free_ptr + span), budget_ptr + span, inclusive_ptr + span, BLOCK,
        BUDGETS,
    )  # fmt: skip
    for first in range(start, end, BLOCK):
        at = first + tl.arange(0, BLOCK)
        rank = tl.load(ranks_ptr + at, mask=at < end, other=-1)
        chosen = (rank > 0) & (rank < failing)
        place = tl.load(slots_ptr + at, mask=chosen, other=0).to(tl.int64) * canvas_stride
        place += tl.load(positions_ptr + at, mask=chosen, other=0)
        token = tl.load(tokens_ptr + at, mask=chosen, other=0)
        tl.store(current_ptr + at, token, mask=chosen)
        tl.store(canvases_ptr + place, token, mask=chosen)


@triton.jit
def _first_failing(
    confidence_ptr, ranks_ptr, start, end, count, sure, threshold, factor, last_free, budget_ptr, inclusive_ptr,
    BLOCK: tl.constexpr, BUDGETS: tl.constexpr,
):  # fmt: skip
    """The first rank of a span that may not commit. `ranks` holds -1 where nothing is open, and then the ranks."""
    tl.debug_barrier()  # ranks written by other threads of this program
    failing = count + 1
    for first in range(start, end, BLOCK):
        at = first + tl.arange(0, BLOCK)
        is_open = tl.load(ranks_ptr + at, mask=at < end, other=-1) >= 0
        score = tl.load(confidence_ptr + at, mask=is_open, other=-1.0)
        rank = is_open.to(tl.int32)
        spent = tl.zeros([BLOCK], tl.float64)  # by better ranks
        if BUDGETS:
            spent = tl.where(tl.load(inclusive_ptr) != 0, -score, 0.0)
        for other in range(start, end, BLOCK):
            beside = other + tl.arange(0, BLOCK)
            # Ranks change in this loop, but an open position's stays 0 or more.
            rival_open = tl.load(ranks_ptr + beside, mask=beside < end, other=-1) >= 0
            rival = tl.load(confidence_ptr + beside, mask=rival_open, other=-1.0)
            ahead = (rival[None, :] > score[:, None]) | (
                (rival[None, :] == score[:, None]) & (beside[None, :] < at[:, None])
            )
            ahead = ahead & rival_open[None, :] & is_open[:, None]
            rank += tl.sum(ahead.to(tl.int32), axis=1)
            if BUDGETS:
                spent -= tl.sum(tl.where(ahead, rival[None, :], 0.0), axis=1)
        bar = threshold - tl.math.div_rn(tl.zeros([BLOCK], tl.float32) + factor, (rank + 1).to(tl.float32))
        passes = score >= bar.to(tl.float64)
        if BUDGETS:
            passes = passes & (spent <= tl.load(budget_ptr).to(tl.float64))
        passes = passes | (rank <= sure) | ((rank == count) & (last_free != 0))
        failing = tl.minimum(failing, tl.min(tl.where(is_open & (passes == 0), rank, NEVER), axis=0))
        tl.store(ranks_ptr + at, rank, mask=is_open)
    tl.debug_barrier()
    return failing
