"""Products of few rows, bound by the time to read the weight.

A program multiplies some rows of the weight with all rows of x, so that the weight is read once, many loads at a time.
Programs also share the inner dimension (`splits`) where there would be too few: each writes its own sum, and the kernel
after adds them up, in one order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..common.checks import expect
from ..common.triton_launch import FIRST_CAPABILITY, await_previous, chained
from ..common.types import Fp8Matrix, Matrix
from .triton_quantize import quantize_rows

MOST_ROWS = 64
PROCESSORS = 132  # multiprocessors of an H100
SHARED_BYTES = 226_000  # of a multiprocessor, for the stages of a program
LEAST_ROWS = 16  # of a tile: the matrix unit takes no fewer
TYPES = torch.bfloat16, torch.float16


@dataclass(frozen=True, slots=True)
class Stream:
    """The work of one program: `n` + `narrow` rows of the weight, `k` of the inner dimension at a time, of a
    `splits`-th of it."""

    n: int
    k: int
    warps: int
    stages: int
    splits: int = 1
    narrow: int = 0


def streams(x: Tensor, weight: Matrix, fixed: bool) -> bool:
    """True if products of this size are read-bound, and may be summed in an order that follows from the size."""
    return (
        not fixed
        and x.dtype in TYPES
        and 0 < len(x) <= MOST_ROWS
        and x.is_contiguous()
        and x.data_ptr() % 16 == 0
        and x.shape[1] % 64 == 0
        and weight.shape[0] >= 64
        and torch.cuda.get_device_capability(x.device)[0] >= FIRST_CAPABILITY
    )


def stream_config(rows: int, columns: int, inner: int, gated: bool = False) -> Stream:
    """The stream for so many rows of x and this weight: its programs fill the multiprocessors once, as far as its tiles
    do, and share the inner dimension as little as that takes. Swept on an H200."""
    most = 144 if gated else 192
    best = Stream(128, 64 if gated else 128, 4, 4)
    if columns > most * PROCESSORS:
        return best
    used = 0.0
    for splits in (1,) if gated else (1, 2, 3, 4):
        for n, narrow in ((64, 0), (64, 16), (64, 32), (128, 0), (128, 16), (128, 32), (128, 64)):
            programs = triton.cdiv(columns, n + narrow) * splits
            share = columns * splits / ((n + narrow) * PROCESSORS)
            even = _splits_evenly(inner, 64 if gated else 128, splits)
            if even and n + narrow <= most and programs <= PROCESSORS and share > used + 0.04:
                best, used = Stream(n, 64 if gated else 128, 4, 8, splits, narrow), share
    return best


def _splits_evenly(inner: int, k: int, splits: int) -> bool:
    """True if each of so many programs has numbers of the inner dimension, `k` at a time."""
    blocks = triton.cdiv(inner, k)
    return triton.cdiv(blocks, splits) * (splits - 1) < blocks


def streamed(x: Tensor, weight: Matrix, gated: bool = False, stream: Stream | None = None) -> Tensor:
    """x [T, in] times weight [out, in], transposed, in parts [splits, T, out] that add up to it.

    One part has x's type, several have float32. With an FP8 weight, x is quantized row by row. gated: weight
    [2 * out, in] gives the `swiglu` of the product, in one part.
    """
    tokens, inner = x.shape
    expect("x", x, ("T", "in"), (x.dtype,))
    x_scales = scales = None
    if isinstance(weight, Fp8Matrix):
        (values, x_scales), numbers, scales = quantize_rows(x), weight.values, weight.scales
    else:
        values, numbers = x, weight
    expect("weight", numbers, ("out", inner), (values.dtype,))
    columns = len(numbers) // 2 if gated else len(numbers)
    stream = stream or stream_config(tokens, columns, inner, gated)
    size = values.element_size()
    if size == 1:
        stream = replace(stream, k=2 * stream.k)
    if gated and stream.splits > 1:
        raise ValueError(f"parts of a gated product do not add up: splits must be 1, not {stream.splits}")
    if not _splits_evenly(inner, stream.k, stream.splits):
        raise ValueError(f"{stream.splits} programs cannot share {inner} numbers, {stream.k} at a time")
    share = triton.cdiv(triton.cdiv(inner, stream.k), stream.splits) * stream.k
    kind = x.dtype if stream.splits == 1 else torch.float32
    out = torch.empty((stream.splits, tokens, columns), dtype=kind, device=x.device)
    rows = max(LEAST_ROWS, triton.next_power_of_2(tokens))
    if ACROSS: rows = max(64, rows)
    width = stream.n + stream.narrow
    stage_bytes = (width * (2 if gated else 1) + rows) * stream.k * size
    if ACROSS:
        _stream[(triton.cdiv(columns, width), stream.splits)](
            TensorDescriptor.from_tensor(values, [rows, stream.k]),
            TensorDescriptor.from_tensor(numbers, [stream.n, stream.k]),
            TensorDescriptor.from_tensor(numbers, [stream.narrow or stream.n, stream.k]), x_scales, scales, out, tokens,
            columns, inner, share, BLOCK_T=rows, BLOCK_N=stream.n, NARROW=stream.narrow, BLOCK_K=stream.k, GATED=gated,
            SCALED=scales is not None, PRECISION="ieee" if x.dtype == torch.float32 else "tf32", num_warps=stream.warps,
            num_stages=min(stream.stages, SHARED_BYTES // stage_bytes), **chained(x),
        )  # fmt: skip
    else:
        _stream_old[(triton.cdiv(columns, width), stream.splits)](
            TensorDescriptor.from_tensor(values, [rows, stream.k]),
            TensorDescriptor.from_tensor(numbers, [stream.n, stream.k]), x_scales, scales, out, tokens,
            columns, inner, share, BLOCK_T=rows, BLOCK_N=stream.n, BLOCK_K=stream.k, GATED=gated,
            SCALED=scales is not None, PRECISION="ieee" if x.dtype == torch.float32 else "tf32", num_warps=stream.warps,
            num_stages=min(stream.stages, SHARED_BYTES // stage_bytes), **chained(x),
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["tokens"])
def _stream(
    x, weight, narrow_weight, x_scales_ptr, scales_ptr, out_ptr, tokens, columns, inner, share, BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr, NARROW: tl.constexpr, BLOCK_K: tl.constexpr, GATED: tl.constexpr, SCALED: tl.constexpr,
    PRECISION: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    await_previous(CHAINED)
    start = tl.program_id(0) * (BLOCK_N + NARROW)
    split = tl.program_id(1)
    begin = tl.minimum(split * share, inner)
    stop = tl.minimum(begin + share, inner)
    acc = tl.zeros([BLOCK_T, BLOCK_N], tl.float32)
    up = acc
    LESS: tl.constexpr = NARROW if NARROW > 0 else 16
    acc_narrow = tl.zeros([BLOCK_T, LESS], tl.float32)
    up_narrow = acc_narrow
    for start_k in range(begin, stop, BLOCK_K):  # beyond the edges zeros are read
        a = x.load([0, start_k])
        acc = tl.dot(a, weight.load([start, start_k]).T, acc, input_precision=PRECISION)
        if NARROW > 0:
            w = narrow_weight.load([start + BLOCK_N, start_k])
            acc_narrow = tl.dot(a, w.T, acc_narrow, input_precision=PRECISION)
        if GATED:
            up = tl.dot(a, weight.load([columns + start, start_k]).T, up, input_precision=PRECISION)
            if NARROW > 0:
                w = narrow_weight.load([columns + start + BLOCK_N, start_k])
                up_narrow = tl.dot(a, w.T, up_narrow, input_precision=PRECISION)
    out_ptr += split.to(tl.int64) * tokens * columns
    _store(acc, up, x_scales_ptr, scales_ptr, out_ptr, start, tokens, columns, BLOCK_T, BLOCK_N, GATED, SCALED)
    if NARROW > 0:
        _store(
            acc_narrow, up_narrow, x_scales_ptr, scales_ptr, out_ptr, start + BLOCK_N, tokens, columns, BLOCK_T, NARROW,
            GATED, SCALED,
        )  # fmt: skip


@triton.jit
def _store(
    acc, up, x_scales_ptr, scales_ptr, out_ptr, start, tokens, columns, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr,
    GATED: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    column, token = start + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_T)
    if SCALED:
        row_scales = tl.load(x_scales_ptr + token, mask=token < tokens, other=0.0)[:, None]
        acc *= tl.load(scales_ptr + column, mask=column < columns, other=0.0)[None, :] * row_scales
        if GATED:
            up *= tl.load(scales_ptr + columns + column, mask=column < columns, other=0.0)[None, :] * row_scales
    kind = out_ptr.dtype.element_ty
    if GATED:
        gate = acc.to(kind).to(tl.float32)
        silu = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
        acc = silu * up.to(kind).to(tl.float32)
    inside = (token < tokens)[:, None] & (column < columns)[None, :]
    tl.store(out_ptr + token.to(tl.int64)[:, None] * columns + column[None, :], acc.to(kind), mask=inside)


ACROSS = True


@triton.jit(do_not_specialize=["tokens"])
def _stream_old(
    x, weight, x_scales_ptr, scales_ptr, out_ptr, tokens, columns, inner, share, BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GATED: tl.constexpr, SCALED: tl.constexpr,
    PRECISION: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    await_previous(CHAINED)
    start_n = tl.program_id(0) * BLOCK_N
    split = tl.program_id(1)
    begin = tl.minimum(split * share, inner)
    stop = tl.minimum(begin + share, inner)
    acc = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    second = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    for start_k in range(begin, stop, BLOCK_K):  # beyond the edges zeros are read
        a = x.load([0, start_k])
        w = weight.load([start_n, start_k])
        acc = tl.dot(w, a.T, acc, input_precision=PRECISION)
        if GATED:
            w = weight.load([columns + start_n, start_k])
            second = tl.dot(w, a.T, second, input_precision=PRECISION)
    out_ptr += split.to(tl.int64) * tokens * columns
    _store(acc.T, second.T, x_scales_ptr, scales_ptr, out_ptr, start_n, tokens, columns, BLOCK_T, BLOCK_N, GATED, SCALED)
