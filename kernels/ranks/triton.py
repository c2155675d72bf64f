"""Sums over devices in the kernel that uses them: one launch, in which each row waits for the same row of the others.

A program writes its row of this rank's part to this rank's mailbox, raises a flag in the mailbox of every other rank,
waits for their flags, and reads their rows over the link. A flag is lowered by the one who waited for it.

A half of a mailbox is written again only by the call after the next one. By then each rank has seen a flag of the call
in between, which the others raise after they have read all of this one: so no row is overwritten too early, and no flag
is raised twice. Programs start in the order of their rows, so the first row that is not done on all ranks runs on each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.checks import FLOATS, expect
from ..common.triton_launch import await_previous, chained
from ..common.types import Mailbox, Matrix
from ..elementwise.triton import sum_of
from ..fused.triton import product_parts


def linear_sum_add_rms_norm(
    x: Tensor,
    weight: Matrix,
    residual: Tensor,
    norm: Tensor,
    eps: float,
    mailbox: Mailbox,
    turn: int,
    fixed: bool = False,
) -> tuple[Tensor, Tensor]:
    return sum_add_rms_norm(product_parts(x, weight, fixed), residual, norm, eps, mailbox, turn)


def sum_add_rms_norm(
    parts: Tensor, residual: Tensor, weight: Tensor, eps: float, mailbox: Mailbox, turn: int
) -> tuple[Tensor, Tensor]:
    expect("residual", residual, ("T", mailbox.dim), (mailbox.buffers[0].dtype,))
    expect("parts", parts, ("S", *residual.shape), FLOATS)
    expect("weight", weight, (mailbox.dim,), (residual.dtype,))
    count, tokens, dim = parts.shape
    if tokens > mailbox.rows:
        raise ValueError(f"{tokens} rows do not fit a mailbox of {mailbox.rows}")
    out, total = torch.empty_like(residual), torch.empty_like(residual)
    if tokens:
        block = triton.next_power_of_2(dim)
        _sum_row[(tokens,)](
            parts, residual, total, weight, out, mailbox.addresses, eps, parts.stride(0), turn * mailbox.rows,
            RANK=mailbox.rank, RANKS=len(mailbox.buffers), DIM=dim, BLOCK=block, SUMMED=count,
            num_warps=min(8, max(1, block // 512)), **chained(out),
        )  # fmt: skip
    return out, total


@triton.jit(do_not_specialize=["first"])
def _sum_row(
    parts_ptr, residual_ptr, total_ptr, weight_ptr, out_ptr, addresses_ptr, eps, part_stride, first,
    RANK: tl.constexpr, RANKS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, SUMMED: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """addresses [2, RANKS]: of the ranks' buffers [2, rows, DIM] and flags [2, rows, RANKS]; first: row of the half."""
    await_previous(CHAINED)
    row = tl.program_id(0)
    start = row.to(tl.int64) * DIM
    column = tl.arange(0, BLOCK)
    inside = column < DIM
    kind = out_ptr.dtype.element_ty
    own = sum_of(parts_ptr + start + column, part_stride, inside, kind, SUMMED)
    spot = (first + row).to(tl.int64)
    box = tl.load(addresses_ptr + RANK).to(tl.pointer_type(kind))
    tl.store(box + spot * DIM + column, own, mask=inside)
    tl.debug_barrier()  # all of the row is written before a flag is raised
    for rank in tl.static_range(RANKS):
        if rank != RANK:
            flags = tl.load(addresses_ptr + RANKS + rank).to(tl.pointer_type(tl.int32))
            tl.atomic_xchg(flags + spot * RANKS + RANK, 1, sem="release", scope="sys")
    own_flags = tl.load(addresses_ptr + RANKS + RANK).to(tl.pointer_type(tl.int32))
    for rank in tl.static_range(RANKS):
        if rank != RANK:
            while tl.atomic_cas(own_flags + spot * RANKS + rank, 1, 0, sem="acquire", scope="sys") != 1:
                pass
    tl.debug_barrier()
    x = tl.zeros([BLOCK], tl.float32)
    for rank in tl.static_range(RANKS):
        if rank == RANK:
            x += own.to(tl.float32)
        else:
            other = tl.load(addresses_ptr + rank).to(tl.pointer_type(kind))
            # Not from this multiprocessor's cache, which may have the row of an earlier call.
            x += tl.load(other + spot * DIM + column, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    x = x.to(kind)
    residual = tl.load(residual_ptr + start + column, mask=inside, other=0.0)
    x = (residual.to(tl.float32) + x.to(tl.float32)).to(kind)
    tl.store(total_ptr + start + column, x, mask=inside)
    wide = x.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / DIM + eps)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    normed = (wide * scale).to(kind).to(tl.float32) * weight  # rounded before the weight as well, as torch does it
    tl.store(out_ptr + start + column, normed.to(kind), mask=inside)
