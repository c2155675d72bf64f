"""Sums over devices that read each other's memory, in the kernel that adds the sum to the residual and norms it.

A rank's part is written to its own mailbox. A rank raises a flag in the mailbox of each other rank when the part is
there, waits for their flags, lowers them, and reads their parts over the link. With few rows that is one kernel, in
which each row waits by itself. With more it is three: one that writes, one of a single program that waits for the other
ranks, and one that reads. Flags of many rows would take longer than the rows.

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
from ..elementwise.triton_norms import sum_of
from ..fused.triton import product_parts

MOST_FLAGS = 64  # rows that wait each by itself


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
    if not tokens:
        return out, total
    addresses, launch = mailbox.addresses, chained(out)
    ranks = {"RANK": mailbox.rank, "RANKS": len(mailbox.buffers), "PAD": mailbox.flags[0].shape[3]}
    block = triton.next_power_of_2(dim)
    sizes = {"DIM": dim, "BLOCK": block, "num_warps": min(8, max(1, block // 512))}
    together = tokens <= MOST_FLAGS
    if not together:
        _post[(tokens,)](parts, total, addresses, parts.stride(0), turn * mailbox.rows, RANK=mailbox.rank,
                         SUMMED=count, **sizes, **launch)  # fmt: skip
        _meet[(1,)](addresses, (turn + 1) * (mailbox.rows + 1) - 1, **ranks, num_warps=1, **launch)
    _sum_row[(tokens,)](
        parts, residual, total, weight, out, addresses, eps, parts.stride(0), turn * mailbox.rows,
        turn * (mailbox.rows + 1), SUMMED=count, WAITS=together, **ranks, **sizes, **launch,
    )  # fmt: skip
    return out, total


@triton.jit(do_not_specialize=["first"])
def _post(
    parts_ptr, like_ptr, addresses_ptr, part_stride, first, RANK: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
    SUMMED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Write this rank's part to its mailbox, in the type of `like_ptr`. `first`: row of the half."""
    await_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    kind = like_ptr.dtype.element_ty
    own = sum_of(parts_ptr + row * DIM + column, part_stride, column < DIM, kind, SUMMED)
    tl.store(_box(addresses_ptr, RANK, kind) + (first + row) * DIM + column, own, mask=column < DIM)


@triton.jit
def _box(addresses_ptr, rank: tl.constexpr, kind: tl.constexpr):
    """A rank's buffer. Without its alignment numbers would be read one by one, over a link that takes long packets."""
    return tl.multiple_of(tl.load(addresses_ptr + rank).to(tl.pointer_type(kind)), 16)


@triton.jit(do_not_specialize=["flag"])
def _meet(
    addresses_ptr, flag, RANK: tl.constexpr, RANKS: tl.constexpr, PAD: tl.constexpr, CHAINED: tl.constexpr
):  # fmt: skip
    """Wait until all ranks are here."""
    await_previous(CHAINED)
    _wait_for_others(addresses_ptr, flag, RANK, RANKS, PAD)


@triton.jit
def _wait_for_others(addresses_ptr, flag, RANK: tl.constexpr, RANKS: tl.constexpr, PAD: tl.constexpr):
    """Raise this rank's flag for all others, wait for theirs, and lower them. What any rank has written before, all
    read after."""
    spot = flag.to(tl.int64) * RANKS
    own = tl.load(addresses_ptr + RANKS + RANK).to(tl.pointer_type(tl.int32))
    tl.debug_barrier()  # all threads have written
    for rank in tl.static_range(RANKS):
        if rank != RANK:
            flags = tl.load(addresses_ptr + RANKS + rank).to(tl.pointer_type(tl.int32))
            tl.atomic_xchg(flags + (spot + RANK) * PAD, 1, sem="release", scope="sys")
    for rank in tl.static_range(RANKS):
        if rank != RANK:
            # Plain reads: an atomic operation, again and again, would hold up the one that raises the flag.
            while tl.load(own + (spot + rank) * PAD, volatile=True) != 1:
                pass
    tl.debug_barrier()  # all threads have seen them
    for rank in tl.static_range(RANKS):
        if rank != RANK:
            tl.atomic_xchg(own + (spot + rank) * PAD, 0, sem="acquire", scope="sys")
    tl.debug_barrier()


@triton.jit(do_not_specialize=["first", "first_flag"])
def _sum_row(
    parts_ptr, residual_ptr, total_ptr, weight_ptr, out_ptr, addresses_ptr, eps, part_stride, first, first_flag,
    RANK: tl.constexpr, RANKS: tl.constexpr, PAD: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
    SUMMED: tl.constexpr, WAITS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """addresses [2, RANKS]: of the ranks' buffers [2, rows, DIM] and flags [2, rows + 1, RANKS, PAD]. `first` and
    `first_flag`: rows of the half. WAITS: this kernel writes and waits, too."""
    await_previous(CHAINED)
    row = tl.program_id(0)
    start = row.to(tl.int64) * DIM
    column = tl.arange(0, BLOCK)
    inside = column < DIM
    kind = out_ptr.dtype.element_ty
    spot = (first + row).to(tl.int64) * DIM + column
    own_box = _box(addresses_ptr, RANK, kind)
    residual = tl.load(residual_ptr + start + column, mask=inside, other=0.0)  # while others write
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    if WAITS:
        own = sum_of(parts_ptr + start + column, part_stride, inside, kind, SUMMED)
        tl.store(own_box + spot, own, mask=inside)
        _wait_for_others(addresses_ptr, first_flag + row, RANK, RANKS, PAD)
    else:
        own = tl.load(own_box + spot, mask=inside, other=0.0)
    x = tl.zeros([BLOCK], tl.float32)
    for rank in tl.static_range(RANKS):
        if rank == RANK:
            x += own.to(tl.float32)
        else:
            box = _box(addresses_ptr, rank, kind)
            # Not from this multiprocessor's cache, which may have the row of an earlier call.
            x += tl.load(box + spot, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    x = x.to(kind)
    x = (residual.to(tl.float32) + x.to(tl.float32)).to(kind)
    tl.store(total_ptr + start + column, x, mask=inside)
    wide = x.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / DIM + eps)
    normed = (wide * scale).to(kind).to(tl.float32) * weight  # rounded before the weight as well, as torch does it
    tl.store(out_ptr + start + column, normed.to(kind), mask=inside)
