"""Matrix products: streamed ones of few rows, those whose bits do not depend on the batch, and those in FP8.

A library picks its kernel by the number of rows, and with it the order of a sum. Here every number of the result is
summed over the same blocks of the inner dimension, in the same order and with the same instruction; only how many
numbers a program computes follows the number of rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..common.checks import FLOATS, expect
from ..common.triton_launch import await_previous, chained
from ..common.types import Fp8Matrix, GroupedMatrix, Matrix
from .triton_grouped import grouped_linear
from .triton_quantize import quantize_rows
from .triton_streamed import stream_config, streamed, streams
from .triton_tiles import Tile

GROUP = 8  # tiles of rows that pass one tile of the weight while it is in the cache


# (largest number of rows, its tile). No tile has fewer than 64 rows: below, another instruction would sum.
_HALF = [
    (128, Tile(64, 64, 128, 4, 6)),
    (256, Tile(64, 128, 64, 4, 4)),
    (1 << 31, Tile(128, 128, 64, 4, 3)),
]
_WIDE = [(1 << 31, Tile(64, 64, 32, 4, 2))]  # float32


def linear(x: Tensor, weight: Matrix, fixed: bool = False) -> Tensor:
    if streams(weight, x, fixed) and stream_config(len(x), *weight.shape).splits == 1:
        return streamed(x, weight)[0]
    if isinstance(weight, Fp8Matrix):
        return fp8_linear(x, weight)
    if isinstance(weight, GroupedMatrix):
        return grouped_linear(x, weight, fixed)
    return fixed_linear(x, weight) if fixed else F.linear(x, weight)


def fixed_linear(x: Tensor, weight: Tensor) -> Tensor:
    """As the reference, for fp16, bf16 or float32; rows of both begin at multiples of 16 bytes."""
    expect("x", x, ("T", "in"), FLOATS)
    tokens, inner = x.shape
    expect("weight", weight, ("out", inner), (x.dtype,))
    if inner * x.element_size() % 16 or x.data_ptr() % 16 or weight.data_ptr() % 16:
        raise ValueError(f"rows of {inner} numbers of {x.element_size()} bytes must begin at multiples of 16 bytes")
    columns = len(weight)
    out = x.new_empty((tokens, columns))
    if not tokens or not columns:
        return out
    tile = next(t for most, t in (_WIDE if x.dtype == torch.float32 else _HALF) if tokens <= most)
    _product[(triton.cdiv(tokens, tile.m) * triton.cdiv(columns, tile.n),)](
        TensorDescriptor.from_tensor(x, [tile.m, tile.k]), TensorDescriptor.from_tensor(weight, [tile.n, tile.k]), out,
        tokens, columns, inner, BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k, GROUPED=GROUP,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32", num_warps=tile.warps, num_stages=tile.stages,
        **chained(out),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["tokens"])
def _product(
    x, weight, out_ptr, tokens, columns, inner, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUPED: tl.constexpr, PRECISION: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    await_previous(CHAINED)
    program = tl.program_id(0)
    tiles_m = tl.cdiv(tokens, BLOCK_M)
    width = GROUPED * tl.cdiv(columns, BLOCK_N)
    first = program // width * GROUPED
    size = tl.minimum(tiles_m - first, GROUPED)
    start_m = (first + program % width % size) * BLOCK_M
    start_n = program % width // size * BLOCK_N
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start_k in range(0, inner, BLOCK_K):  # beyond the edges zeros are read
        a = x.load([start_m, start_k])
        b = weight.load([start_n, start_k])
        acc = tl.dot(a, b.T, acc, input_precision=PRECISION)
    row, column = start_m + tl.arange(0, BLOCK_M), start_n + tl.arange(0, BLOCK_N)
    spot = row.to(tl.int64)[:, None] * columns + column[None, :]
    inside = (row < tokens)[:, None] & (column < columns)[None, :]
    tl.store(out_ptr + spot, acc.to(out_ptr.dtype.element_ty), mask=inside)


def fp8_linear(x: Tensor, weight: Fp8Matrix) -> Tensor:
    """As the reference, for x in bf16."""
    expect("x", x, ("T", weight.values.shape[1]), (torch.bfloat16,))
    values, scales = quantize_rows(x)
    return torch._scaled_mm(
        values, weight.values.T, scales[:, None], weight.scales[None, :], out_dtype=x.dtype, use_fast_accum=True
    )
