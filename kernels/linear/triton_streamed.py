"""Products of few rows, bound by the time to read the weight.

A program multiplies some rows of the weight with all rows of x, so that the weight is read once, many loads at a time.
Programs also share the inner dimension (`splits`) where there would be too few: each writes its own sum, and the kernel
after adds them up, in one order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..common.checks import FLOATS, expect
from ..common.triton_launch import FIRST_CAPABILITY, await_previous, chained
from ..common.types import Matrix

MOST_ROWS = 64
LEAST_ROWS = 16  # of a tile: the matrix unit takes no fewer
MOST_SPLITS = 4
PROCESSORS = 132  # multiprocessors of an H100
SHARED_BYTES = 226_000  # of a multiprocessor, for the stages of a program
TYPES = torch.bfloat16, torch.float16


@dataclass(frozen=True, slots=True)
class Stream:
    """The work of one program: `n` rows of the weight, `k` of the inner dimension at a time, of a `splits`-th of it."""

    n: int
    k: int
    warps: int
    stages: int
    splits: int = 1


def streams(weight: Matrix, x: Tensor, fixed: bool) -> TypeGuard[Tensor]:
    """True if x has so few rows that its product waits for the weight, and both lie as the copy engine needs them."""
    return (
        not fixed
        and isinstance(weight, Tensor)
        and x.dtype in TYPES
        and 0 < len(x) <= MOST_ROWS
        and x.is_contiguous()
        and weight.is_contiguous()
        and x.shape[1] % 8 == 0
        and x.data_ptr() % 16 == 0
        and weight.data_ptr() % 16 == 0
        and torch.cuda.get_device_capability(x.device)[0] >= FIRST_CAPABILITY
    )


def stream_config(rows: int, columns: int, inner: int, gated: bool = False) -> Stream:
    """The stream for so many rows of x and a weight of so many columns of the result, swept on an H200.

    Programs fill the multiprocessors once if the weight has too few rows for more.
    """
    if gated:
        return Stream(64, 64 if rows <= 16 else 128, 4, 4)
    if columns > 32768:
        return Stream(128, 128, 4, 4)
    if columns > 64 * PROCESSORS:
        return Stream(64, 64 if rows <= 32 else 128, 4, 6)
    splits = min(MOST_SPLITS, PROCESSORS // triton.cdiv(columns, 64))
    if splits == 1:
        return Stream(64, 64, 4, 6, _even(2, inner, 64))
    return Stream(64, 128, 4, 6, _even(splits, inner, 128))


def _even(splits: int, inner: int, k: int) -> int:
    """As many splits, but no more than leave some numbers of the inner dimension, `k` at a time, to each."""
    blocks = triton.cdiv(inner, k)
    while triton.cdiv(blocks, splits) * (splits - 1) >= blocks:
        splits -= 1
    return splits


def streamed(x: Tensor, weight: Tensor, gated: bool = False, stream: Stream | None = None) -> Tensor:
    """x [T, in] times weight [out, in], transposed, in parts [splits, T, out] that add up to it.

    One part has x's type, several have float32. gated: weight [2 * out, in] gives the `swiglu` of the product, in one
    part.
    """
    expect("x", x, ("T", "in"), FLOATS)
    tokens, inner = x.shape
    expect("weight", weight, ("out", inner), (x.dtype,))
    columns = len(weight) // 2 if gated else len(weight)
    stream = stream or stream_config(tokens, columns, inner, gated)
    if gated and stream.splits > 1:
        raise ValueError(f"parts of a gated product do not add up: splits must be 1, not {stream.splits}")
    if _even(stream.splits, inner, stream.k) < stream.splits:
        raise ValueError(f"{stream.splits} programs cannot share {inner} numbers, {stream.k} at a time")
    out = x.new_empty((stream.splits, tokens, columns), dtype=x.dtype if stream.splits == 1 else torch.float32)
    rows = max(LEAST_ROWS, triton.next_power_of_2(tokens))
    stage_bytes = (stream.n * (2 if gated else 1) + rows) * stream.k * x.element_size()
    share = triton.cdiv(triton.cdiv(inner, stream.k), stream.splits) * stream.k
    _stream[(triton.cdiv(columns, stream.n), stream.splits)](
        TensorDescriptor.from_tensor(x, [rows, stream.k]), TensorDescriptor.from_tensor(weight, [stream.n, stream.k]),
        out, tokens, columns, inner, share, BLOCK_T=rows, BLOCK_N=stream.n, BLOCK_K=stream.k, GATED=gated,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32", num_warps=stream.warps,
        num_stages=min(stream.stages, SHARED_BYTES // stage_bytes), **chained(x),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["tokens"])
def _stream(
    x, weight, out_ptr, tokens, columns, inner, share, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GATED: tl.constexpr, PRECISION: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """One tile of one part. The weight's rows are the matrix unit's rows, of which it takes 64 at a time."""
    await_previous(CHAINED)
    start_n = tl.program_id(0) * BLOCK_N
    split = tl.program_id(1)
    begin = tl.minimum(split * share, inner)
    stop = tl.minimum(begin + share, inner)
    acc = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    up = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    for start_k in range(begin, stop, BLOCK_K):  # beyond the edges zeros are read
        a = x.load([0, start_k])
        w = weight.load([start_n, start_k])
        acc = tl.dot(w, a.T, acc, input_precision=PRECISION)
        if GATED:
            w = weight.load([columns + start_n, start_k])
            up = tl.dot(w, a.T, up, input_precision=PRECISION)
    kind = out_ptr.dtype.element_ty
    if GATED:
        gate = acc.to(kind).to(tl.float32)
        silu = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
        acc = silu * up.to(kind).to(tl.float32)
    column, token = start_n + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_T)
    spot = (split * tokens + token).to(tl.int64)[:, None] * columns + column[None, :]
    inside = (token < tokens)[:, None] & (column < columns)[None, :]
    tl.store(out_ptr + spot, acc.T.to(kind), mask=inside)
