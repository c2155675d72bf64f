"""Products with a weight in int4 or FP8 whose groups of columns have scales of their own.

4-bit numbers, less their zeros, become numbers of x's type in registers, exactly; weights in FP8 are multiplied with
rows of x that are quantized one by one. The scale of a group multiplies the sum over the group, not each weight. The
weight is the first factor of the matrix unit, which may stay in registers: tiles are transposed until they are stored.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.checks import FLOATS, expect
from ..common.triton_launch import await_previous, chained
from ..common.types import INT4_BLOCK, GroupedMatrix
from .triton_quantize import quantize_rows
from .triton_tiles import Tile

WORDS = INT4_BLOCK // 8  # of a block of a row
FEW_ROWS = 256  # up to which programs share the inner dimension
MOST_SPLITS = 6
PROGRAMS = 3 * 132  # that a card of 132 multiprocessors keeps busy while they wait for the weight

# (largest number of rows, its tile): `m` rows of x, `n` of the weight, `k` columns at a time. Products of few rows wait
# for the weight: many loads are on their way. All fit cards of 99 KB shared memory.
_INT4 = [
    (16, Tile(16, 64, 2 * INT4_BLOCK, 4, 3)),
    (32, Tile(32, 64, 2 * INT4_BLOCK, 4, 3)),
    (64, Tile(64, 64, 2 * INT4_BLOCK, 4, 3)),
    (1 << 31, Tile(128, 64, INT4_BLOCK, 4, 3)),
]
_INT4_FIXED = Tile(64, 64, INT4_BLOCK, 4, 3)
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
    return _product(x, weight, _tile(len(x), x.dtype, weight, fixed), 1)[0]


def grouped_parts(x: Tensor, weight: GroupedMatrix, fixed: bool = False) -> Tensor:
    """The same in parts [S, T, out] that add up to it: one in x's type, or several in float32 where a product of few
    rows would leave multiprocessors idle."""
    tile = _tile(len(x), x.dtype, weight, fixed)
    columns, inner = weight.shape
    programs = triton.cdiv(len(x), tile.m) * triton.cdiv(columns, tile.n)
    splits = 1
    if programs and len(x) <= FEW_ROWS and not fixed:
        splits = max(1, min(MOST_SPLITS, PROGRAMS // programs, inner // tile.k))
    return _product(x, weight, tile, splits)


def _product(x: Tensor, weight: GroupedMatrix, tile: Tile, splits: int) -> Tensor:
    columns, inner = weight.shape
    expect("x", x, ("T", inner), FLOATS)
    tokens = len(x)
    out = x.new_empty((splits, tokens, columns), dtype=x.dtype if splits == 1 else torch.float32)
    if not tokens or not columns:
        return out
    grid = (triton.cdiv(tokens, tile.m) * triton.cdiv(columns, tile.n), splits)
    common = {
        "GROUP": weight.group, "BLOCK_T": tile.m, "BLOCK_N": tile.n, "num_warps": tile.warps, "num_stages": tile.stages,
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32", **chained(out),
    }  # fmt: skip
    groups = weight.scales.shape[1]
    if weight.zeros is not None:
        blocks = triton.cdiv(inner, INT4_BLOCK)
        share = triton.cdiv(triton.cdiv(blocks, splits), tile.k // INT4_BLOCK) * (tile.k // INT4_BLOCK)
        _int4[grid](
            x, weight.values, weight.scales, weight.zeros, out, tokens, columns, inner, groups, share, WORDS=WORDS,
            BLOCKS=tile.k // INT4_BLOCK, WHOLE=inner % tile.k == 0, PACKED=packs(x), **common,
        )  # fmt: skip
    else:
        block_k = within_group(tile.k, weight)
        share = triton.cdiv(triton.cdiv(inner, block_k), splits)
        _fp8[grid](
            *quantize_rows(x), weight.values, weight.scales, out, tokens, columns, inner, groups, share,
            BLOCK_K=block_k, WIDENED=not x.is_cuda, **common,
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
    int4 = weight.zeros is not None
    if dtype == torch.float32:
        return Tile(_WIDE.m, _WIDE.n, INT4_BLOCK, _WIDE.warps, _WIDE.stages) if int4 else _WIDE
    if fixed:
        return _INT4_FIXED if int4 else _FP8_FIXED
    return next(tile for most, tile in (_INT4 if int4 else _FP8) if tokens <= most)


@triton.jit(do_not_specialize=["tokens", "share"])
def _int4(
    x_ptr, words_ptr, scales_ptr, zeros_ptr, out_ptr, tokens, columns, inner, groups, share, GROUP: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, WORDS: tl.constexpr, BLOCKS: tl.constexpr, WHOLE: tl.constexpr,
    PACKED: tl.constexpr, PRECISION: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """One tile of one part of the product, which sums over `share` blocks of columns. Programs beside each other read
    the same tile of the weight. WHOLE: no turn's columns go beyond the last.

    x [tokens, inner], words [columns, blocks * WORDS] int32, scales and zeros [columns, groups] float32, out [parts,
    tokens, columns].
    """
    await_previous(CHAINED)
    tiles_t = tl.cdiv(tokens, BLOCK_T)
    token = tl.program_id(0) % tiles_t * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.program_id(0) // tiles_t * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    real, inside = token < tokens, column < columns
    PLANE: tl.constexpr = 2 * WORDS
    RUN: tl.constexpr = 4 if GROUP % (4 * PLANE) == 0 else 1  # planes of a block that certainly share a scale
    each = tl.arange(0, PLANE)
    x_rows = x_ptr + token.to(tl.int64)[:, None] * inner + each[None, :]
    blocks = tl.cdiv(inner, 4 * PLANE)
    word = tl.arange(0, WORDS)
    word_rows = words_ptr + column.to(tl.int64)[:, None] * (blocks * WORDS) + word[None, :]
    row_groups = column.to(tl.int64) * groups
    acc = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    for first_block in range(split * share, tl.minimum(split * share + share, blocks), BLOCKS):
        for number in tl.static_range(BLOCKS):
            block = first_block + number
            there = inside[:, None]
            if not WHOLE:
                there = there & (block * WORDS + word < blocks * WORDS)[None, :]
            words = tl.load(word_rows + block * WORDS, mask=there, other=0)
            for run in tl.static_range(4 // RUN):
                start = block * (4 * PLANE) + run * RUN * PLANE
                scale, zero = group_scales(scales_ptr, zeros_ptr, row_groups, start, groups, inside, GROUP)
                part = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
                for plane in tl.static_range(RUN):
                    k = start + plane * PLANE
                    known = real[:, None]
                    if not WHOLE:
                        known = known & (k + each < inner)[None, :]
                    x = tl.load(x_rows + k, mask=known, other=0.0)
                    weight = int4_plane(words, run * RUN + plane, zero, x.dtype, PACKED)
                    part = tl.dot(weight, x.T, part, input_precision=PRECISION)
                acc += part * scale[:, None]
    spot = (split * tokens + token).to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out_ptr + spot, acc.T.to(out_ptr.dtype.element_ty), mask=real[:, None] & inside[None, :])


@triton.jit
def group_scales(scales_ptr, zeros_ptr, row_groups, start, groups, inside, GROUP: tl.constexpr):
    """Scales and zeros [N] float32, in N rows, of the group that has column `start`. The groups of a row begin at its
    number in `row_groups` [N]."""
    spot = row_groups + tl.minimum(start // GROUP, groups - 1)  # numbers after the last column meet zeros of x
    return tl.load(scales_ptr + spot, mask=inside, other=0.0), tl.load(zeros_ptr + spot, mask=inside, other=0.0)


@triton.jit
def int4_plane(words, plane: tl.constexpr, zero, dtype: tl.constexpr, PACKED: tl.constexpr):
    """The numbers [N, 2 * W] of a plane of words [N, W], each less the zero [N] of its row: whole numbers, which every
    type holds exactly. The two numbers of a word are side by side.

    PACKED: a bfloat16 of the bits 0x4300 | n is 128 + n, so one instruction subtracts 128 and the zero from both
    numbers of a word.
    """
    shifted = words >> (4 * plane)
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
    return tl.join(low, high).reshape(words.shape[0], 2 * words.shape[1])


@triton.jit(do_not_specialize=["tokens", "share"])
def _fp8(
    x_ptr, x_scales_ptr, values_ptr, scales_ptr, out_ptr, tokens, columns, inner, groups, share, GROUP: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WIDENED: tl.constexpr, PRECISION: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """As `_int4`, with values [columns, inner] and x in FP8, and x_scales [tokens] float32. A block of columns lies
    within a group. WIDENED: FP8 becomes float32 first, for an interpreter, which cannot multiply it."""
    await_previous(CHAINED)
    tiles_t = tl.cdiv(tokens, BLOCK_T)
    token = tl.program_id(0) % tiles_t * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.program_id(0) // tiles_t * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    real, inside = token < tokens, column < columns
    x_rows = x_ptr + token.to(tl.int64)[:, None] * inner
    value_rows = values_ptr + column.to(tl.int64)[:, None] * inner
    row_groups = column.to(tl.int64) * groups
    acc = tl.zeros([BLOCK_N, BLOCK_T], tl.float32)
    # A block's number, not its start: the copies must see that they are aligned.
    for block in range(split * share, tl.minimum(split * share + share, tl.cdiv(inner, BLOCK_K))):
        start = block * BLOCK_K
        k = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_rows + k[None, :], mask=real[:, None] & (k < inner)[None, :], other=0.0)
        values = tl.load(value_rows + k[None, :], mask=inside[:, None] & (k < inner)[None, :], other=0.0)
        if WIDENED:
            x, values = x.to(tl.float32), values.to(tl.float32)
        scale = tl.load(scales_ptr + row_groups + start // GROUP, mask=inside, other=0.0)
        acc += tl.dot(values, x.T, input_precision=PRECISION) * scale[:, None]
    acc *= tl.load(x_scales_ptr + token, mask=real, other=0.0)[None, :]
    spot = (split * tokens + token).to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out_ptr + spot, acc.T.to(out_ptr.dtype.element_ty), mask=real[:, None] & inside[None, :])
