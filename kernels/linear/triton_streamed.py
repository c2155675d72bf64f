"""Products of few rows, bound by the time to read the weight.

A program multiplies some rows of the weight with all rows of x, so that the weight is read once, many loads at a time.
Programs also share the inner dimension (`splits`) where there would be too few: each writes its own sum, and the kernel
after adds them up, in one order. While the kernel before still runs, a program already has the first part of its weight
fetched to the cache (`ahead`): that kernel leaves the memory idle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from ..common.checks import expect
from ..common.triton_launch import FIRST_CAPABILITY, chained
from ..common.types import Fp8Matrix, Matrix
from .triton_quantize import quantize_rows

MOST_ROWS = 64
PROCESSORS = 132  # multiprocessors of an H100
SHARED_BYTES = 220_000  # of a multiprocessor, for the stages of a program
LEAST_ROWS = 16  # of a tile: the matrix unit takes no fewer
TYPES = torch.bfloat16, torch.float16


@dataclass(frozen=True, slots=True)
class Stream:
    """The work of one program: `n` rows of the weight, `k` of the inner dimension at a time, of a `splits`-th of it.

    `ahead`: bytes of each row that are fetched to the cache before the kernel before has ended.
    """

    n: int
    k: int
    warps: int
    stages: int
    splits: int = 1
    ahead: int = 0
    early: int = 0


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
    """The stream for so many rows of x and this weight, swept on an H200: programs fill the multiprocessors once."""
    if gated:
        return Stream(64, 64 if rows <= 16 else 128, 4, 4)
    if columns > 32768:
        return Stream(128, 128, 4, 4)
    if columns > 8192:
        return Stream(64, 64 if rows <= 32 else 128, 4, 6)
    return Stream(64, 128, 4, 6, min(4, max(1, PROCESSORS // triton.cdiv(columns, 64))))


def streamed(x: Tensor, weight: Matrix, gated: bool = False, stream: Stream | None = None) -> Tensor:
    """x [T, in] times weight [out, in], transposed, in parts [splits, T, out] that add up to it.

    One part has x's type, several have float32. With an FP8 weight, x is quantized row by row. gated: weight [2 * out, in] gives the `swiglu` of the product, in one
    part.
    """
    tokens, inner = x.shape
    expect("x", x, ("T", "in"), (x.dtype,))
    values, x_scales, numbers, scales = x, None, weight, None
    if isinstance(weight, Fp8Matrix):
        (values, x_scales), numbers, scales = quantize_rows(x), weight.values, weight.scales
    expect("weight", numbers, ("out", inner), (values.dtype,))
    columns = len(numbers) // 2 if gated else len(numbers)
    stream = stream or stream_config(tokens, columns, inner, gated)
    size = values.element_size()
    if size == 1:
        stream = replace(stream, k=2 * stream.k)
    if gated and stream.splits > 1:
        raise ValueError(f"parts of a gated product do not add up: splits must be 1, not {stream.splits}")
    share = triton.cdiv(triton.cdiv(inner, stream.k), stream.splits) * stream.k
    least = inner - share * (stream.splits - 1)  # numbers of a row that the last split has
    if least <= 0:
        raise ValueError(f"{stream.splits} programs cannot share {inner} numbers, {stream.k} at a time")
    kind = x.dtype if stream.splits == 1 else torch.float32
    out = torch.empty((stream.splits, tokens, columns), dtype=kind, device=x.device)
    rows = max(LEAST_ROWS, triton.next_power_of_2(tokens))
    stage_bytes = (stream.n * (2 if gated else 1) + rows) * stream.k * size
    _stream[(triton.cdiv(columns, stream.n), stream.splits)](
        TensorDescriptor.from_tensor(values, [rows, stream.k]), TensorDescriptor.from_tensor(numbers, [stream.n, stream.k]),
        TensorDescriptor.from_tensor(numbers, [stream.n, stream.early or stream.k]), values, numbers, x_scales, scales, out,
        tokens, columns, inner, share, BLOCK_T=rows, BLOCK_N=stream.n, BLOCK_K=stream.k, EARLY=stream.early,
        AHEAD=min(stream.ahead, least * size), GATED=gated, SCALED=scales is not None, THREADS=32 * stream.warps, LINE=PREFETCH_LINE, ASM=PREFETCH_ASM,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32", num_warps=stream.warps, num_stages=min(stream.stages, (SHARED_BYTES - stage_bytes // stream.k * stream.early) // stage_bytes),
        **chained(x),
    )  # fmt: skip
    return out


PREFETCH_LINE = 128
PREFETCH_ASM = "prefetch.global.L2 [$1]; mov.u32 $0, 0;"


@triton.jit(do_not_specialize=["tokens"])
def _stream(
    x, weight, early_weight, x_ptr, weight_ptr, x_scales_ptr, scales_ptr, out_ptr, tokens, columns, inner, share, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, EARLY: tl.constexpr, AHEAD: tl.constexpr, GATED: tl.constexpr, SCALED: tl.constexpr, THREADS: tl.constexpr, LINE: tl.constexpr, ASM: tl.constexpr,
    PRECISION: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    start_n = tl.program_id(0) * BLOCK_N
    split = tl.program_id(1)
    begin = tl.minimum(split * share, inner)
    stop = tl.minimum(begin + share, inner)
    if CHAINED:
        gdc_launch_dependents()
        if AHEAD > 0:
            _prefetch(weight_ptr, start_n, columns, begin, stop, inner, AHEAD, BLOCK_N, THREADS, LINE, ASM)
            if GATED:
                _prefetch(
                    weight_ptr, columns + start_n, 2 * columns, begin, stop, inner, AHEAD, BLOCK_N, THREADS, LINE, ASM
                )
        if EARLY > 0:
            first = early_weight.load([start_n, begin])
            other = first
            if GATED:
                other = early_weight.load([columns + start_n, begin])
        gdc_wait()
        if EARLY > 0:
            t = tl.arange(0, BLOCK_T)
            at = begin + tl.arange(0, EARLY)
            xa = tl.load(x_ptr + t[:, None] * inner + at[None, :], mask=(t < tokens)[:, None], other=0.0)
    acc = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    second = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    for start_k in range(begin + EARLY, stop, BLOCK_K):  # beyond the edges zeros are read
        a = x.load([0, start_k])
        w = weight.load([start_n, start_k])
        acc = tl.dot(w, a.T, acc, input_precision=PRECISION)
        if GATED:
            w = weight.load([columns + start_n, start_k])
            second = tl.dot(w, a.T, second, input_precision=PRECISION)
    if EARLY > 0:
        acc = tl.dot(first, xa.T, acc)
        if GATED:
            second = tl.dot(other, xa.T, second)
    column, token = start_n + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_T)
    if SCALED:
        row_scales = tl.load(x_scales_ptr + token, mask=token < tokens, other=0.0)[None, :]
        acc *= tl.load(scales_ptr + column, mask=column < columns, other=0.0)[:, None] * row_scales
        if GATED:
            second *= tl.load(scales_ptr + columns + column, mask=column < columns, other=0.0)[:, None] * row_scales
    kind = out_ptr.dtype.element_ty
    if GATED:
        gate = acc.to(kind).to(tl.float32)
        silu = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
        acc = silu * second.to(kind).to(tl.float32)
    spot = (split * tokens + token).to(tl.int64)[:, None] * columns + column[None, :]
    inside = (token < tokens)[:, None] & (column < columns)[None, :]
    tl.store(out_ptr + spot, acc.T.to(kind), mask=inside)


@triton.jit
def _prefetch(
    weight_ptr,
    start,
    end,
    begin,
    stop,
    inner,
    AHEAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
    THREADS: tl.constexpr,
    LINE: tl.constexpr,
    ASM: tl.constexpr,
):
    """Start to fetch the first `AHEAD` bytes of each of `BLOCK_N` rows, from number `begin` on, to the cache."""
    thread = tl.arange(0, THREADS)
    IN_ROW: tl.constexpr = AHEAD // LINE
    for turn in tl.static_range(BLOCK_N * IN_ROW // THREADS):
        line = turn * THREADS + thread
        row = tl.minimum(start + line // IN_ROW, end - 1).to(tl.int64)
        address = (weight_ptr + row * inner + begin).to(tl.int64) + line % IN_ROW * LINE
        tl.inline_asm_elementwise(
            ASM, "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
