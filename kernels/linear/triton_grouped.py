"""Products with a weight in int4 or FP8 whose groups of columns have scales of their own.

A tile of the weight is read as it is stored, and becomes numbers of x's type in registers: each number is rounded as
`dequantize` and a conversion round it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.checks import FLOATS, expect
from ..common.triton_launch import await_previous, chained
from ..common.types import GroupedMatrix
from .triton_tiles import Tile

# (largest number of rows, its tile): `m` rows of x, `n` of the weight. Products of few rows wait for the weight, which
# more programs read faster. Not yet swept on a card.
_HALF = [
    (16, Tile(16, 32, 128, 4, 4)),
    (32, Tile(32, 32, 128, 4, 4)),
    (64, Tile(64, 64, 128, 4, 3)),
    (1 << 31, Tile(128, 128, 64, 8, 3)),
]
_FIXED = Tile(64, 64, 64, 4, 3)
_WIDE = Tile(32, 32, 32, 4, 2)  # float32


def grouped_linear(x: Tensor, weight: GroupedMatrix, fixed: bool = False) -> Tensor:
    """x [T, in] times a weight [out, in], transposed: [T, out] in x's type."""
    columns, inner = weight.shape
    expect("x", x, ("T", inner), FLOATS)
    tokens = len(x)
    out = x.new_empty((tokens, columns))
    if not tokens or not columns:
        return out
    tile = _tile(tokens, x.dtype, fixed)
    block_k = within_group(tile.k, weight)
    _grouped[(triton.cdiv(tokens, tile.m) * triton.cdiv(columns, tile.n),)](
        x, weight.values, weight.scales, weight.zeros, out, tokens, columns, inner, weight.scales.shape[1],
        GROUP=weight.group, BLOCK_T=tile.m, BLOCK_N=tile.n, BLOCK_K=block_k, INT4=weight.zeros is not None,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32", num_warps=tile.warps, num_stages=tile.stages,
        **chained(out),
    )  # fmt: skip
    return out


def within_group(block: int, weight: GroupedMatrix) -> int:
    """The largest block of columns, at most `block`, of which each lies within a group."""
    while weight.group % block:
        block //= 2
    return block


def _tile(tokens: int, dtype: torch.dtype, fixed: bool) -> Tile:
    if dtype == torch.float32:
        return _WIDE
    return _FIXED if fixed else next(tile for most, tile in _HALF if tokens <= most)


@triton.jit(do_not_specialize=["tokens"])
def _grouped(
    x_ptr, values_ptr, scales_ptr, zeros_ptr, out_ptr, tokens, columns, inner, groups, GROUP: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, INT4: tl.constexpr, PRECISION: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """One tile. Programs beside each other share a tile of the weight, whose rows are the matrix unit's rows."""
    await_previous(CHAINED)
    tiles_t = tl.cdiv(tokens, BLOCK_T)
    token = tl.program_id(0) % tiles_t * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.program_id(0) // tiles_t * BLOCK_N + tl.arange(0, BLOCK_N)
    real, inside = token < tokens, column < columns
    x_rows = x_ptr + token.to(tl.int64)[:, None] * inner
    weight_rows = column.to(tl.int64)
    acc = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    for start in range(0, inner, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_rows + k[None, :], mask=real[:, None] & (k < inner)[None, :], other=0.0)
        weight = dequantized(
            values_ptr, scales_ptr, zeros_ptr, weight_rows, inside, start, inner, groups, GROUP, BLOCK_N, BLOCK_K, INT4
        )
        acc = tl.dot(weight.to(x.dtype), x.T, acc, input_precision=PRECISION)
    spot = token.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out_ptr + spot, acc.T.to(out_ptr.dtype.element_ty), mask=real[:, None] & inside[None, :])


@triton.jit
def dequantized(
    values_ptr, scales_ptr, zeros_ptr, row, inside, start, inner, groups, GROUP: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, INT4: tl.constexpr,
):  # fmt: skip
    """A tile [BLOCK_N, BLOCK_K] float32 of the weight: its rows `row`, from column `start` on, within a group."""
    group = row * groups + start // GROUP
    scale = tl.load(scales_ptr + group, mask=inside, other=0.0)
    if INT4:
        word = start // 8 + tl.arange(0, BLOCK_K // 8)
        words = tl.load(
            values_ptr + row[:, None] * (inner // 8) + word[None, :],
            mask=inside[:, None] & (word < inner // 8)[None, :],
            other=0,
        )
        numbers = words[:, :, None] >> (4 * tl.arange(0, 8))[None, None, :] & 15
        zero = tl.load(zeros_ptr + group, mask=inside, other=0).to(tl.int32)
        values = (tl.reshape(numbers, [BLOCK_N, BLOCK_K]) - zero[:, None]).to(tl.float32)
    else:
        k = start + tl.arange(0, BLOCK_K)
        mask = inside[:, None] & (k < inner)[None, :]
        values = tl.load(values_ptr + row[:, None] * inner + k[None, :], mask=mask, other=0.0).to(tl.float32)
    return values * scale[:, None]
