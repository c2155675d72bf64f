"""Products with a weight in int4 or FP8 whose groups of columns have scales of their own.

4-bit numbers, less their zeros, become numbers of x's type in registers, exactly; weights in FP8 are multiplied with
rows of x that are quantized one by one. The scale of a group multiplies the sum over the group, not each weight. The
weight is the first factor of the matrix unit, which may stay in registers: tiles are transposed until they are stored.
For many rows the matrix unit would wait for the conversion, so 4-bit weights are converted first, once for all rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from ..common.checks import FLOATS, expect
from ..common.triton_launch import await_previous, chained
from ..common.types import INT4_PER_WORD, GroupedMatrix
from .triton_quantize import quantize_rows
from .triton_tiles import Tile

FEW_ROWS = 256  # up to which programs share the inner dimension
MOST_SPLITS = 8
MANY_ROWS = 512  # beyond which a 4-bit weight is converted first
PROGRAMS = 3 * 132  # that a card of 132 multiprocessors keeps busy while they wait for the weight

# (largest number of rows, its tile): `m` rows of x, `n` of the weight, `k` columns at a time. Products of few rows wait
# for the weight: many loads are on their way. All fit cards of 99 KB shared memory.
_INT4 = [
    (16, Tile(16, 128, 128, 4, 3)),
    (32, Tile(32, 128, 128, 4, 3, registers=168)),
    (64, Tile(64, 128, 128, 4, 3)),
    (256, Tile(128, 128, 64, 8, 4)),
    (1 << 31, Tile(128, 64, 128, 4, 3)),
]
_INT4_FIXED = Tile(64, 64, 128, 4, 3)
_FP8 = [
    (16, Tile(16, 64, 128, 4, 4)),
    (32, Tile(32, 64, 128, 4, 4)),
    (64, Tile(64, 64, 128, 4, 3)),
    (1 << 31, Tile(128, 128, 128, 8, 3)),
]
_FP8_FIXED = Tile(64, 64, 128, 4, 3)
_WIDE = Tile(32, 32, 32, 4, 2)  # float32


def grouped_linear(x: Tensor, weight: GroupedMatrix, fixed: bool = False) -> Tensor:
    """x [T, in] times a weight [out, in], transposed: [T, out] in x's type."""
    if _converts(x, weight, fixed):
        return F.linear(x, converted(weight, x.dtype))
    return _product(x, weight, _tile(len(x), x.dtype, weight, fixed), 1)[0]


def grouped_parts(x: Tensor, weight: GroupedMatrix, fixed: bool = False) -> Tensor:
    """The same in parts [S, T, out] that add up to it: one in x's type, or several in float32 where a product of few
    rows would leave multiprocessors idle."""
    if _converts(x, weight, fixed):
        return F.linear(x, converted(weight, x.dtype))[None]
    tile = _tile(len(x), x.dtype, weight, fixed)
    columns, inner = weight.shape
    programs = triton.cdiv(len(x), tile.m) * triton.cdiv(columns, tile.n)
    splits = 1
    if programs and len(x) <= FEW_ROWS and not fixed:
        splits = max(1, min(MOST_SPLITS, PROGRAMS // programs, inner // tile.k))
    return _product(x, weight, tile, splits)


def converted(weight: GroupedMatrix, dtype: torch.dtype) -> Tensor:
    """A 4-bit weight as a matrix [out, in] of `dtype`."""
    columns, inner = weight.shape
    out = weight.values.new_empty((columns, inner), dtype=dtype)
    block_k = within_group(128, weight)
    _convert[(triton.cdiv(columns, 64), triton.cdiv(inner, block_k))](
        weight.values, weight.scales, out, columns, inner, *weight.scales.stride()[:2], GROUP=weight.group, BLOCK_N=64,
        BLOCK_K=block_k, PER_WORD=INT4_PER_WORD, PACKED=packs(out), **chained(out),
    )  # fmt: skip
    return out


def _converts(x: Tensor, weight: GroupedMatrix, fixed: bool) -> bool:
    return weight.int4 and len(x) > MANY_ROWS and not fixed and x.dtype != torch.float32


def _product(x: Tensor, weight: GroupedMatrix, tile: Tile, splits: int) -> Tensor:
    columns, inner = weight.shape
    expect("x", x, ("T", inner), FLOATS)
    tokens = len(x)
    out = x.new_empty((splits, tokens, columns), dtype=x.dtype if splits == 1 else torch.float32)
    if not tokens or not columns:
        return out
    rows, x_scales = (x, None) if weight.int4 else quantize_rows(x)
    block_k = within_group(tile.k, weight)
    _grouped[(triton.cdiv(tokens, tile.m) * triton.cdiv(columns, tile.n), splits)](
        rows, x_scales, weight.values, weight.scales, out, tokens, columns, inner, *weight.scales.stride()[:2],
        triton.cdiv(triton.cdiv(inner, block_k), splits), GROUP=weight.group, BLOCK_T=tile.m, BLOCK_N=tile.n,
        BLOCK_K=block_k, INT4=weight.int4, PER_WORD=INT4_PER_WORD, PACKED=packs(x),
        WIDENED=not weight.int4 and not x.is_cuda, PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers, **chained(out),
    )  # fmt: skip
    return out


def within_group(block: int, weight: GroupedMatrix) -> int:
    """The largest block of columns, at most `block`, of which each lies within a group."""
    while weight.group % block:
        block //= 2
    return block


def packs(x: Tensor) -> bool:
    """True where one instruction can make two numbers of x's type from 4-bit ones."""
    return x.is_cuda and x.dtype == torch.bfloat16


def _tile(tokens: int, dtype: torch.dtype, weight: GroupedMatrix, fixed: bool) -> Tile:
    if dtype == torch.float32:
        return _WIDE
    if fixed:
        return _INT4_FIXED if weight.int4 else _FP8_FIXED
    return next(tile for most, tile in (_INT4 if weight.int4 else _FP8) if tokens <= most)


@triton.jit(do_not_specialize=["tokens", "share"])
def _grouped(
    x_ptr, x_scales_ptr, weight_ptr, scales_ptr, out_ptr, tokens, columns, inner, row_stride, group_stride,
    share, GROUP: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    INT4: tl.constexpr, PER_WORD: tl.constexpr, PACKED: tl.constexpr, WIDENED: tl.constexpr, PRECISION: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """One tile of one part of the product, which sums over `share` blocks of columns, each within a group. Programs
    beside each other read the same tile of the weight.

    x [tokens, inner], weight [columns, inner], scales [columns, groups] float32 of the strides given, out [parts,
    tokens, columns]. With INT4 the weight is words [columns, inner / PER_WORD], and scales [columns, groups, 2] have
    zeros. Without, x and weight are in FP8, with x_scales [tokens] float32. WIDENED: FP8 becomes float32 first, for an
    interpreter, which cannot multiply it.
    """
    await_previous(CHAINED)
    tiles_t = tl.cdiv(tokens, BLOCK_T)
    token = tl.program_id(0) % tiles_t * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.program_id(0) // tiles_t * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    real, inside = token < tokens, column < columns
    x_rows = x_ptr + token.to(tl.int64) * inner
    row_scales = column.to(tl.int64) * row_stride
    OF_BLOCK: tl.constexpr = BLOCK_K // PER_WORD if INT4 else BLOCK_K
    of_row = inner // BLOCK_K * OF_BLOCK if INT4 else inner  # blocks of words are whole: the copies see it so
    stored = weight_ptr + column.to(tl.int64)[:, None] * of_row
    acc = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    # A block's number, not its start: the copies must see that they are aligned.
    for block in range(split * share, tl.minimum(split * share + share, tl.cdiv(inner, BLOCK_K))):
        k = block * BLOCK_K + tl.arange(0, BLOCK_K)
        spot = row_scales + block * BLOCK_K // GROUP * group_stride
        if INT4:
            x = tl.load(x_rows[:, None] + k[None, :], mask=real[:, None], other=0.0)
            word = block * OF_BLOCK + tl.arange(0, OF_BLOCK)
            words = tl.load(stored + word[None, :], mask=inside[:, None], other=0)
            scale, zero = scales_and_zeros(scales_ptr + spot, inside)
            weight = int4_numbers(words, zero, x.dtype, PACKED)
        else:
            scale = tl.load(scales_ptr + spot, mask=inside, other=0.0)
            known = (k < inner)[None, :]
            x = tl.load(x_rows[:, None] + k[None, :], mask=real[:, None] & known, other=0.0)
            weight = tl.load(stored + k[None, :], mask=inside[:, None] & known, other=0.0)
        if WIDENED:
            x, weight = x.to(tl.float32), weight.to(tl.float32)
        acc += tl.dot(weight, x.T, input_precision=PRECISION) * scale[:, None]
    if not INT4:
        acc *= tl.load(x_scales_ptr + token, mask=real, other=0.0)[None, :]
    spot = (split * tokens + token).to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out_ptr + spot, acc.T.to(out_ptr.dtype.element_ty), mask=real[:, None] & inside[None, :])


@triton.jit
def _convert(
    weight_ptr, scales_ptr, out_ptr, columns, inner, row_stride, group_stride, GROUP: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PER_WORD: tl.constexpr, PACKED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """One block of columns, within a group, of BLOCK_N rows."""
    await_previous(CHAINED)
    block = tl.program_id(1)
    row = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    inside = row < columns
    word = block * (BLOCK_K // PER_WORD) + tl.arange(0, BLOCK_K // PER_WORD)
    words = tl.load(weight_ptr + row[:, None] * (inner // PER_WORD) + word[None, :], mask=inside[:, None], other=0)
    spot = row * row_stride + block * BLOCK_K // GROUP * group_stride
    scale, zero = scales_and_zeros(scales_ptr + spot, inside)
    numbers = int4_numbers(words, zero, out_ptr.dtype.element_ty, PACKED).to(tl.float32) * scale[:, None]
    out = out_ptr + row[:, None] * inner + block * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    tl.store(out, numbers.to(out_ptr.dtype.element_ty), mask=inside[:, None])


@triton.jit
def scales_and_zeros(pointers, inside):
    """The scales and zeros [N] of 4-bit numbers, from pointers [N] to the scales. They come in one reading, which the
    compiler starts turns ahead, since the zeros are needed for the product."""
    return tl.split(tl.load(pointers[:, None] + tl.arange(0, 2)[None, :], mask=inside[:, None], other=0.0))


@triton.jit
def int4_numbers(words, zero, dtype: tl.constexpr, PACKED: tl.constexpr):
    """The numbers [N, 8 * W] in words [N, W], as `pack_int4` made them, each less the zero [N] of its row: whole
    numbers, which every type holds exactly.

    PACKED: a bfloat16 of the bits 0x4300 | n is 128 + n, so one instruction subtracts 128 and the zero from both
    numbers of a pair.
    """
    shifted = (words[:, :, None] >> (4 * tl.arange(0, 4))[None, None, :]).reshape(words.shape[0], 4 * words.shape[1])
    if PACKED:
        bits = (-128.0 - zero).to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        pairs = tl.inline_asm_elementwise(
            """{
                .reg .b32 one, upper, both;
                mov.b32 one, 0x3F803F80;
                mov.b32 upper, 0x43004300;
                lop3.b32 both, $1, 0x000F000F, upper, 0xEA;
                fma.rn.bf16x2 $0, both, one, $2;
            }""",
            "=r,r,r", [shifted, (bits | bits << 16)[:, None]], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
        low = pairs.to(tl.int16).to(tl.bfloat16, bitcast=True)
        high = (pairs >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        low = ((shifted & 15).to(tl.float32) - zero[:, None]).to(dtype)
        high = ((shifted >> 16 & 15).to(tl.float32) - zero[:, None]).to(dtype)
    return tl.join(low, high).reshape(words.shape[0], 8 * words.shape[1])
