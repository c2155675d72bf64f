"""Decides which positions commit and writes them to the canvases in one launch, with no size read by the host."""

# ruff: noqa: N803 - what Triton compiles in is written in capitals
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..checks import expect

CHUNK = 64  # positions ranked at a time
NEVER = tl.constexpr(1 << 30)  # a rank beyond every span


def transfer(
    confidence: Tensor,
    open_: Tensor,
    span_starts: Tensor,
    sure: Tensor,
    threshold: Tensor,
    factor: Tensor,
    last_free: Tensor,
) -> Tensor:
    """Which open positions commit: [N] bool. The rule is `scheduler.contract.DeviceCommitRule`; ties go to the left.

    confidence [N] float64; open_ [N] bool; span_starts [S + 1] int32, spans laid end to end; sure [S] int32;
    threshold, factor [S] float32; last_free [S] bool. Positions behind the last span do not commit; spans may be empty.
    Ranks are counted, so a span of n positions costs n * n comparisons of one program.
    """
    expect("open_", open_, ("N",), (torch.bool,))
    _require(len(open_), confidence, span_starts, sure, threshold, factor, last_free)
    chosen = torch.zeros_like(open_)
    ranks = torch.empty(len(open_), dtype=torch.int32, device=open_.device)
    if len(sure):
        _transfer[(len(sure),)](
            confidence, open_, span_starts, sure, threshold, factor, last_free, ranks, chosen, BLOCK=CHUNK
        )
    return chosen


def commit(
    canvases: Tensor,
    slots: Tensor,
    positions: Tensor,
    tokens: Tensor,
    confidence: Tensor,
    mask_id: int,
    span_starts: Tensor,
    sure: Tensor,
    threshold: Tensor,
    factor: Tensor,
    last_free: Tensor,
) -> Tensor:
    """Writes `tokens` where masks commit by `transfer`; returns what the canvases then hold: [N] int64.

    canvases [slots, length] int64; slots, positions, tokens [N] int64; confidence [N] float64; the rest as in
    `transfer`. Behind the last span nothing is read or written, and the result is undefined.
    """
    expect("canvases", canvases, ("slots", "length"), (torch.int64,))
    expect("tokens", tokens, ("N",), (torch.int64,))
    for name, tensor in (("slots", slots), ("positions", positions)):
        expect(name, tensor, (len(tokens),), (torch.int64,))
    _require(len(tokens), confidence, span_starts, sure, threshold, factor, last_free)
    held = torch.empty_like(tokens)
    ranks = torch.empty(len(tokens), dtype=torch.int32, device=tokens.device)
    if len(sure):
        _commit[(len(sure),)](
            canvases, slots, positions, tokens, confidence, mask_id, span_starts, sure, threshold, factor, last_free,
            ranks, held, canvases.stride(0), BLOCK=CHUNK,
        )  # fmt: skip
    return held


def _require(
    count: int, confidence: Tensor, span_starts: Tensor, sure: Tensor, threshold: Tensor, factor: Tensor,
    last_free: Tensor,
) -> None:  # fmt: skip
    spans = sure.numel()
    expect("confidence", confidence, (count,), (torch.float64,))
    expect("span_starts", span_starts, (spans + 1,), (torch.int32,))
    expect("sure", sure, (spans,), (torch.int32,))
    for name, tensor in (("threshold", threshold), ("factor", factor)):
        expect(name, tensor, (spans,), (torch.float32,))
    expect("last_free", last_free, (spans,), (torch.bool,))


@triton.jit
def _transfer(
    confidence_ptr, open_ptr, starts_ptr, sure_ptr, threshold_ptr, factor_ptr, last_free_ptr, ranks_ptr, chosen_ptr,
    BLOCK: tl.constexpr,
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
        tl.load(factor_ptr + span), tl.load(last_free_ptr + span), BLOCK,
    )  # fmt: skip
    for first in range(start, end, BLOCK):
        at = first + tl.arange(0, BLOCK)
        rank = tl.load(ranks_ptr + at, mask=at < end, other=-1)
        tl.store(chosen_ptr + at, (rank > 0) & (rank < failing), mask=at < end)


@triton.jit(do_not_specialize=["mask_id"])
def _commit(
    canvases_ptr, slots_ptr, positions_ptr, tokens_ptr, confidence_ptr, mask_id, starts_ptr, sure_ptr, threshold_ptr,
    factor_ptr, last_free_ptr, ranks_ptr, held_ptr, canvas_stride, BLOCK: tl.constexpr,
):  # fmt: skip
    span = tl.program_id(0)
    start, end = tl.load(starts_ptr + span), tl.load(starts_ptr + span + 1)
    count = 0
    for first in range(start, end, BLOCK):
        at = first + tl.arange(0, BLOCK)
        place = tl.load(slots_ptr + at, mask=at < end, other=0).to(tl.int64) * canvas_stride
        place += tl.load(positions_ptr + at, mask=at < end, other=0)
        held = tl.load(canvases_ptr + place, mask=at < end, other=-1)
        is_open = (held == mask_id) & (at < end)
        tl.store(held_ptr + at, held, mask=at < end)
        tl.store(ranks_ptr + at, tl.where(is_open, 0, -1), mask=at < end)
        count += tl.sum(is_open.to(tl.int32), axis=0)
    failing = _first_failing(
        confidence_ptr, ranks_ptr, start, end, count, tl.load(sure_ptr + span), tl.load(threshold_ptr + span),
        tl.load(factor_ptr + span), tl.load(last_free_ptr + span), BLOCK,
    )  # fmt: skip
    for first in range(start, end, BLOCK):
        at = first + tl.arange(0, BLOCK)
        rank = tl.load(ranks_ptr + at, mask=at < end, other=-1)
        chosen = (rank > 0) & (rank < failing)
        place = tl.load(slots_ptr + at, mask=chosen, other=0).to(tl.int64) * canvas_stride
        place += tl.load(positions_ptr + at, mask=chosen, other=0)
        token = tl.load(tokens_ptr + at, mask=chosen, other=0)
        tl.store(held_ptr + at, token, mask=chosen)
        tl.store(canvases_ptr + place, token, mask=chosen)


@triton.jit
def _first_failing(
    confidence_ptr, ranks_ptr, start, end, count, sure, threshold, factor, last_free, BLOCK: tl.constexpr
):
    """The first rank of a span that may not commit. `ranks` holds -1 where nothing is open, and then the ranks."""
    tl.debug_barrier()  # ranks written by other threads of this program
    failing = count + 1
    for first in range(start, end, BLOCK):
        at = first + tl.arange(0, BLOCK)
        is_open = tl.load(ranks_ptr + at, mask=at < end, other=-1) >= 0
        score = tl.load(confidence_ptr + at, mask=is_open, other=-1.0)
        rank = is_open.to(tl.int32)
        for other in range(start, end, BLOCK):
            beside = other + tl.arange(0, BLOCK)
            # Ranks change in this loop, but an open position's stays 0 or more.
            rival_open = tl.load(ranks_ptr + beside, mask=beside < end, other=-1) >= 0
            rival = tl.load(confidence_ptr + beside, mask=rival_open, other=-1.0)
            ahead = (rival[None, :] > score[:, None]) | (
                (rival[None, :] == score[:, None]) & (beside[None, :] < at[:, None])
            )
            rank += tl.sum((ahead & rival_open[None, :] & is_open[:, None]).to(tl.int32), axis=1)
        bar = threshold - tl.math.div_rn(tl.zeros([BLOCK], tl.float32) + factor, (rank + 1).to(tl.float32))
        passes = (score >= bar.to(tl.float64)) | (rank <= sure) | ((rank == count) & (last_free != 0))
        failing = tl.minimum(failing, tl.min(tl.where(is_open & (passes == 0), rank, NEVER), axis=0))
        tl.store(ranks_ptr + at, rank, mask=is_open)
    tl.debug_barrier()
    return failing
