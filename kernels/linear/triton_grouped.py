"""Products with a weight in int4 or FP8 whose groups of columns have scales of their own.

A tile of the weight is read as it is stored, and becomes numbers of x's type in registers: each is rounded as
`dequantize` and a conversion round it. The 4-bit numbers of a word are as far apart as a step of the matrix unit is
long, so that a shift of a tile of words is a factor.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.checks import FLOATS, expect
from ..common.triton_launch import await_previous, chained
from ..common.types import INT4_BLOCK, GroupedMatrix
from .triton_tiles import Tile

# (largest number of rows, its tile): `m` rows of x, `n` of the weight; of int4, `k` is that of its blocks. Products of
# few rows wait for the weight: many loads are on their way. All fit cards of 99 KB shared
# memory; none is swept on a card yet.
_INT4 = [
    (16, Tile(16, 32, INT4_BLOCK, 4, 8)),
    (32, Tile(32, 32, INT4_BLOCK, 4, 6)),
    (64, Tile(64, 64, INT4_BLOCK, 4, 4)),
    (1 << 31, Tile(128, 128, INT4_BLOCK, 8, 2)),
]
_INT4_FIXED = Tile(64, 64, INT4_BLOCK, 4, 3)
_FP8 = [
    (16, Tile(16, 32, 128, 4, 4)),
    (32, Tile(32, 32, 128, 4, 4)),
    (64, Tile(64, 64, 128, 4, 3)),
    (1 << 31, Tile(128, 128, 64, 8, 3)),
]
_FP8_FIXED = Tile(64, 64, 64, 4, 3)
_WIDE = Tile(32, 32, 32, 4, 2)  # float32


def grouped_linear(x: Tensor, weight: GroupedMatrix, fixed: bool = False) -> Tensor:
    """x [T, in] times a weight [out, in], transposed: [T, out] in x's type."""
    columns, inner = weight.shape
    expect("x", x, ("T", inner), FLOATS)
    tokens = len(x)
    out = x.new_empty((tokens, columns))
    if not tokens or not columns:
        return out
    int4 = weight.zeros is not None
    tile = _tile(tokens, x.dtype, int4, fixed)
    grid = (triton.cdiv(tokens, tile.m) * triton.cdiv(columns, tile.n),)
    common = {
        "GROUP": weight.group, "BLOCK_T": tile.m, "BLOCK_N": tile.n, "num_warps": tile.warps, "num_stages": tile.stages,
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32", **chained(out),
    }  # fmt: skip
    if int4:
        _int4[grid](
            x, weight.values, weight.scales, weight.zeros, out, tokens, columns, inner, weight.scales.shape[1],
            PLANE=INT4_BLOCK // 8, **common,
        )  # fmt: skip
    else:
        _fp8[grid](
            x, weight.values, weight.scales, out, tokens, columns, inner, weight.scales.shape[1],
            BLOCK_K=within_group(tile.k, weight), **common,
        )  # fmt: skip
    return out


def within_group(block: int, weight: GroupedMatrix) -> int:
    """The largest block of columns, at most `block`, of which each lies within a group."""
    while weight.group % block:
        block //= 2
    return block


def _tile(tokens: int, dtype: torch.dtype, int4: bool, fixed: bool) -> Tile:
    if dtype == torch.float32:
        return _WIDE
    if fixed:
        return _INT4_FIXED if int4 else _FP8_FIXED
    return next(tile for most, tile in (_INT4 if int4 else _FP8) if tokens <= most)


@triton.jit(do_not_specialize=["tokens"])
def _int4(
    x_ptr, words_ptr, scales_ptr, zeros_ptr, out_ptr, tokens, columns, inner, groups, GROUP: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, PLANE: tl.constexpr, PRECISION: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """One tile. Programs beside each other share a tile of the weight, whose rows are the matrix unit's rows."""
    await_previous(CHAINED)
    tiles_t = tl.cdiv(tokens, BLOCK_T)
    token = tl.program_id(0) % tiles_t * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.program_id(0) // tiles_t * BLOCK_N + tl.arange(0, BLOCK_N)
    real, inside = token < tokens, column < columns
    each = tl.arange(0, PLANE)
    x_rows = x_ptr + token.to(tl.int64)[:, None] * inner + each[None, :]
    blocks = tl.cdiv(inner, 8 * PLANE)
    word_rows = words_ptr + column.to(tl.int64)[:, None] * (blocks * PLANE) + each[None, :]
    row_groups = column.to(tl.int64) * groups
    acc = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    for block in range(blocks):
        words = tl.load(word_rows + block * PLANE, mask=inside[:, None], other=0)
        first = block * (8 * PLANE)
        scale, zero = group_scales(scales_ptr, zeros_ptr, row_groups, first, groups, inside, GROUP)
        for plane in tl.static_range(8):
            start = first + plane * PLANE
            if GROUP % (8 * PLANE) != 0:
                scale, zero = group_scales(scales_ptr, zeros_ptr, row_groups, start, groups, inside, GROUP)
            x = tl.load(x_rows + start, mask=real[:, None] & (start + each < inner)[None, :], other=0.0)
            weight = int4_plane(words, plane, scale, zero).to(x.dtype)
            acc = tl.dot(weight, x.T, acc, input_precision=PRECISION)
    spot = token.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out_ptr + spot, acc.T.to(out_ptr.dtype.element_ty), mask=real[:, None] & inside[None, :])


@triton.jit
def group_scales(scales_ptr, zeros_ptr, row_groups, start, groups, inside, GROUP: tl.constexpr):
    """Scales and zeros of the group of a column in some rows, whose groups begin at `row_groups`."""
    spot = row_groups + tl.minimum(start // GROUP, groups - 1)  # numbers after the last column meet zeros of x
    return tl.load(scales_ptr + spot, mask=inside, other=0.0), tl.load(zeros_ptr + spot, mask=inside, other=0.0)


@triton.jit
def int4_plane(words, plane: tl.constexpr, scale, zero):
    """The columns that a number of each word makes up, in float32."""
    # With these upper bits a float32 is 2^23 and the number: cheaper than a conversion, and as exact.
    wide = (words >> (4 * plane) & 15 | 0x4B000000).to(tl.float32, bitcast=True)
    return (wide - (zero + 8388608.0)[:, None]) * scale[:, None]


@triton.jit(do_not_specialize=["tokens"])
def _fp8(
    x_ptr, values_ptr, scales_ptr, out_ptr, tokens, columns, inner, groups, GROUP: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """As `_int4`; a block of columns lies within a group."""
    await_previous(CHAINED)
    tiles_t = tl.cdiv(tokens, BLOCK_T)
    token = tl.program_id(0) % tiles_t * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.program_id(0) // tiles_t * BLOCK_N + tl.arange(0, BLOCK_N)
    real, inside = token < tokens, column < columns
    x_rows = x_ptr + token.to(tl.int64)[:, None] * inner
    rows = column.to(tl.int64)
    acc = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    for start in range(0, inner, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_rows + k[None, :], mask=real[:, None] & (k < inner)[None, :], other=0.0)
        mask = inside[:, None] & (k < inner)[None, :]
        values = tl.load(values_ptr + rows[:, None] * inner + k[None, :], mask=mask, other=0.0)
        scale = tl.load(scales_ptr + rows * groups + start // GROUP, mask=inside, other=0.0)
        acc = tl.dot((values.to(tl.float32) * scale[:, None]).to(x.dtype), x.T, acc, input_precision=PRECISION)
    spot = token.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out_ptr + spot, acc.T.to(out_ptr.dtype.element_ty), mask=real[:, None] & inside[None, :])
