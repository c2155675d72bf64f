"""A mixture of experts on a GPU: tokens are sorted by expert on the device, so that a CUDA graph can hold all of it.

Pairs of a token and one of its choices are laid out expert by expert, each expert's padded to whole tiles. The largest
number of tiles follows from the numbers of tokens and experts alone; tiles after the last one end at once. A number of
the result is summed in one order, whatever else is in the batch, if the tile is the same (`fixed`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.checks import FLOATS, expect
from ..common.triton_launch import await_previous, chained
from ..common.types import FP8, INT4_PER_WORD, Fp8Matrix, GroupedMatrix, Matrix, Routing
from ..elementwise.triton import activation
from ..elementwise.triton_norms import weighted_sum
from ..linear.triton_grouped import int4_numbers, packs, scales_and_zeros, within_group
from ..linear.triton_quantize import quantize_rows
from ..linear.triton_tiles import Tile
from .reference import LEAST_SUM

COLUMNS = 1024  # numbers of one program where choices are added up
PAIRS = 1024  # that a program looks at together while it sorts

# (most pairs of an expert on average, its tile, whose rows are such pairs), swept on an H200. They fit cards of 99 KB
# shared memory.
_TILES = [
    (10, Tile(16, 64, 64, 4, 5)),
    (28, Tile(32, 64, 64, 4, 4)),
    (96, Tile(64, 64, 64, 4, 3)),
    (1 << 31, Tile(128, 64, 64, 4, 3)),
]
_FP8_TILES = [
    (10, Tile(16, 64, 128, 4, 3)),
    (28, Tile(32, 64, 128, 4, 3)),
    (96, Tile(64, 64, 128, 4, 3)),
    (1 << 31, Tile(128, 64, 128, 8, 3)),
]
_FIXED = Tile(64, 64, 64, 4, 4)
_WIDE = Tile(32, 32, 32, 4, 2)  # float32


def route(logits: Tensor, bias: Tensor | None, routing: Routing, scales: Tensor | None = None) -> tuple[Tensor, Tensor]:
    expect("logits", logits, ("T", "E"), (torch.float32,))
    tokens, count = logits.shape
    if bias is not None:
        expect("bias", bias, (count,), (torch.float32,))
    if scales is not None:
        expect("scales", scales, (count,), (torch.float32,))
    if count % routing.groups or routing.chosen > count // routing.groups * routing.live_groups:
        raise ValueError(f"{routing.chosen} of {count} experts in {routing.groups} groups cannot be chosen")
    chosen = torch.empty((tokens, routing.chosen), dtype=torch.int32, device=logits.device)
    weights = torch.empty((tokens, routing.chosen), dtype=torch.float32, device=logits.device)
    members = count // routing.groups
    if tokens:
        _route[(tokens,)](
            logits, bias, scales, chosen, weights, routing.scale, LEAST_SUM, GROUPS=routing.groups, MEMBERS=members,
            GROUPS_WIDTH=triton.next_power_of_2(routing.groups), MEMBERS_WIDTH=triton.next_power_of_2(members),
            LIVE=routing.live_groups, CHOSEN=routing.chosen, CHOSEN_WIDTH=triton.next_power_of_2(routing.chosen),
            SIGMOID=routing.sigmoid, NORMED=routing.normed, BIAS=bias is not None, SCALES=scales is not None,
            num_warps=1, **chained(chosen),
        )  # fmt: skip
    return chosen, weights


@triton.jit
def _route(
    logits_ptr, bias_ptr, scales_ptr, chosen_ptr, weights_ptr, scale, least, GROUPS: tl.constexpr,
    MEMBERS: tl.constexpr, GROUPS_WIDTH: tl.constexpr, MEMBERS_WIDTH: tl.constexpr, LIVE: tl.constexpr,
    CHOSEN: tl.constexpr, CHOSEN_WIDTH: tl.constexpr, SIGMOID: tl.constexpr, NORMED: tl.constexpr, BIAS: tl.constexpr,
    SCALES: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    await_previous(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS_WIDTH)
    member = tl.arange(0, MEMBERS_WIDTH)
    COUNT: tl.constexpr = GROUPS * MEMBERS
    inside = (group < GROUPS)[:, None] & (member < MEMBERS)[None, :]
    expert = group[:, None] * MEMBERS + member[None, :]
    logits = tl.load(logits_ptr + token * COUNT + expert, mask=inside, other=float("-inf"))
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-logits))
    else:
        scores = tl.exp(logits - tl.max(tl.max(logits, axis=1), axis=0))
        scores = scores / tl.sum(tl.sum(scores, axis=1), axis=0)
    ranked = scores
    if BIAS:
        ranked += tl.load(bias_ptr + expert, mask=inside, other=0.0)
    ranked = tl.where(inside, ranked, float("-inf"))
    if GROUPS > 1:
        best = tl.max(ranked, axis=1)
        first = tl.min(tl.where(ranked == best[:, None], expert, COUNT), axis=1)
        strength = best + tl.max(tl.where(expert == first[:, None], float("-inf"), ranked), axis=1)
        live = group < 0
        for _ in tl.static_range(LIVE):
            rest = tl.where(live | (group >= GROUPS), float("-inf"), strength)
            live = live | (group == tl.min(tl.where(rest == tl.max(rest, axis=0), group, GROUPS), axis=0))
        ranked = tl.where(live[:, None], ranked, float("-inf"))
    choice = tl.arange(0, CHOSEN_WIDTH)
    chosen = tl.zeros([CHOSEN_WIDTH], tl.int32)
    weights = tl.zeros([CHOSEN_WIDTH], tl.float32)
    for number in tl.static_range(CHOSEN):
        top = tl.max(tl.max(ranked, axis=1), axis=0)
        taken = tl.min(tl.min(tl.where(ranked == top, expert, COUNT - 1), axis=1), axis=0)
        weight = tl.sum(tl.sum(tl.where(inside & (expert == taken), scores, 0.0), axis=1), axis=0)
        chosen = tl.where(choice == number, taken, chosen)
        weights = tl.where(choice == number, weight, weights)
        ranked = tl.where(expert == taken, float("-inf"), ranked)
    if NORMED:
        weights = weights / (tl.sum(weights, axis=0) + least)
    weights *= scale
    if SCALES:
        weights *= tl.load(scales_ptr + chosen, mask=choice < CHOSEN, other=0.0)
    spot = token * CHOSEN + choice
    tl.store(chosen_ptr + spot, chosen, mask=choice < CHOSEN)
    tl.store(weights_ptr + spot, weights, mask=choice < CHOSEN)


def experts_mlp(
    x: Tensor, gate_up: Matrix, down: Matrix, chosen: Tensor, weights: Tensor, fixed: bool = False, gelu: bool = False
) -> Tensor:
    expect("weights", weights, tuple(chosen.shape), (torch.float32,))
    parts = experts_parts(x, gate_up, down, chosen, fixed, gelu)
    out, (tokens, choices, dim) = torch.empty_like(x), parts.shape
    if tokens:
        _add_up[(tokens, triton.cdiv(dim, COLUMNS))](
            parts, weights, out, DIM=dim, CHOICES=choices, BLOCK=COLUMNS, **chained(x)
        )
    return out


def experts_parts(
    x: Tensor, gate_up: Matrix, down: Matrix, chosen: Tensor, fixed: bool = False, gelu: bool = False
) -> Tensor:
    expect("x", x, ("T", "dim"), FLOATS)
    tokens, dim = x.shape
    expect("chosen", chosen, (tokens, "K"), (torch.int32,))
    _expect_matrix("gate_up", gate_up, ("E * 2 * F", dim), x.dtype)
    down_rows, inner = down.shape
    experts = down_rows // dim
    _expect_matrix("down", down, (experts * dim, "F"), x.dtype)
    if gate_up.shape[0] != experts * 2 * inner:
        raise ValueError(f"gate_up has {gate_up.shape[0]} rows, {experts} experts of {inner} have two for each")
    choices = chosen.shape[1]
    pairs = tokens * choices
    parts = x.new_empty((tokens, choices, dim))
    if not tokens:
        return parts
    tile = _tile(pairs / experts, x, fixed, (gate_up, down))
    tiles = (pairs + min(experts, pairs) * (tile.m - 1)) // tile.m
    order, ends = _sorted(chosen, experts, tiles, tile.m)
    hidden = x.new_empty((pairs, inner))
    common = {
        "EXPERTS": experts, "EXPERTS_WIDTH": triton.next_power_of_2(experts), "BLOCK_M": tile.m, "BLOCK_N": tile.n,
        "num_warps": tile.warps, "num_stages": tile.stages, "GELU": gelu, "PER_WORD": INT4_PER_WORD,
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32", **chained(x),
    }  # fmt: skip
    _experts[(tiles * triton.cdiv(inner, tile.n),)](
        *_rows(x, gate_up), *_tensors(gate_up), order, ends, hidden, tiles, SHARED=choices, IN=dim, OUT=inner,
        GATED=True, **_format(gate_up, tile, x), **common,
    )  # fmt: skip
    _experts[(tiles * triton.cdiv(dim, tile.n),)](
        *_rows(hidden, down), *_tensors(down), order, ends, parts, tiles, SHARED=1, IN=inner, OUT=dim, GATED=False,
        **_format(down, tile, x), **common,
    )  # fmt: skip
    return parts


def _expect_matrix(name: str, weight: Matrix, shape: tuple[int | str, int | str], dtype: torch.dtype) -> None:
    if isinstance(weight, GroupedMatrix):  # its words hold several columns
        weight = torch.empty(weight.shape, dtype=dtype, device="meta")
    expect(name, weight.values if isinstance(weight, Fp8Matrix) else weight, shape, (dtype, FP8))


def _in_fp8(weight: Matrix) -> bool:
    return isinstance(weight, Fp8Matrix) or (isinstance(weight, GroupedMatrix) and not weight.int4)


def _rows(x: Tensor, weight: Matrix) -> tuple[Tensor, Tensor | None]:
    """Rows as they meet a weight, and their scales, if they have any."""
    return quantize_rows(x) if _in_fp8(weight) else (x, None)


def _tensors(weight: Matrix) -> tuple[Tensor, Tensor | None]:
    return (weight, None) if isinstance(weight, Tensor) else (weight.values, weight.scales)


def _format(weight: Matrix, tile: Tile, x: Tensor) -> dict[str, int | bool]:
    fp8 = _in_fp8(weight)
    form: dict[str, int | bool] = {"FP8": fp8, "WIDENED": fp8 and not x.is_cuda, "PACKED": packs(x)}
    if not isinstance(weight, GroupedMatrix):
        return form | {"GROUP": 0, "ROW_STRIDE": 0, "GROUP_STRIDE": 0, "INT4": False, "BLOCK_K": tile.k}
    row_stride, group_stride = weight.scales.stride()[:2]
    return form | {
        "GROUP": weight.group, "ROW_STRIDE": row_stride, "GROUP_STRIDE": group_stride, "INT4": weight.int4,
        "BLOCK_K": within_group(128 if weight.int4 else tile.k, weight),
    }  # fmt: skip


def _tile(pairs: float, x: Tensor, fixed: bool, weights: tuple[Matrix, Matrix]) -> Tile:
    if x.dtype == torch.float32:
        return _WIDE
    if fixed:
        return _FIXED
    return next(tile for most, tile in (_FP8_TILES if all(map(_in_fp8, weights)) else _TILES) if pairs <= most)


def _sorted(chosen: Tensor, experts: int, tiles: int, size: int) -> tuple[Tensor, Tensor]:
    """Pairs by expert [tiles * size] int32, each expert's padded with -1 to whole tiles, and the tile at which each
    expert's have ended [E] int32. A pair's number is `token * K + choice`."""
    counts = torch.empty(experts, dtype=torch.int32, device=chosen.device)
    ends = torch.empty_like(counts)
    order = torch.empty(tiles * size, dtype=torch.int32, device=chosen.device)
    _count[(experts,)](chosen, counts, chosen.numel(), BLOCK=PAIRS, **chained(chosen))
    _place[(experts,)](
        chosen, counts, order, ends, chosen.numel(), EXPERTS=experts, WIDTH=triton.next_power_of_2(experts),
        SIZE=size, BLOCK=PAIRS, **chained(chosen),
    )  # fmt: skip
    return order, ends


@triton.jit(do_not_specialize=["pairs"])
def _count(chosen_ptr, counts_ptr, pairs, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    await_previous(CHAINED)
    expert = tl.program_id(0)
    found = tl.zeros([BLOCK], tl.int32)
    for start in range(0, pairs, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        found += (tl.load(chosen_ptr + pair, mask=pair < pairs, other=-1) == expert).to(tl.int32)
    tl.store(counts_ptr + expert, tl.sum(found, axis=0))


@triton.jit(do_not_specialize=["pairs"])
def _place(
    chosen_ptr, counts_ptr, order_ptr, ends_ptr, pairs, EXPERTS: tl.constexpr, WIDTH: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    await_previous(CHAINED)
    expert = tl.program_id(0)
    each = tl.arange(0, WIDTH)
    needed = tl.cdiv(tl.load(counts_ptr + each, mask=each < EXPERTS, other=0), SIZE)
    end = tl.sum(tl.where(each <= expert, needed, 0), axis=0)
    tl.store(ends_ptr + expert, end)
    spot = tl.sum(tl.where(each < expert, needed, 0), axis=0) * SIZE
    for start in range(0, pairs, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        mine = tl.load(chosen_ptr + pair, mask=pair < pairs, other=-1) == expert
        rank = tl.cumsum(mine.to(tl.int32), axis=0)
        tl.store(order_ptr + spot + rank - 1, pair, mask=mine)
        spot += tl.sum(mine.to(tl.int32), axis=0)
    spare = tl.arange(0, SIZE)
    tl.store(order_ptr + spot + spare, -1, mask=spot + spare < end * SIZE)


@triton.jit(do_not_specialize=["tiles"])
def _experts(
    x_ptr, x_scales_ptr, weight_ptr, scales_ptr, order_ptr, ends_ptr, out_ptr, tiles, SHARED: tl.constexpr,
    IN: tl.constexpr, OUT: tl.constexpr, GATED: tl.constexpr, EXPERTS: tl.constexpr, EXPERTS_WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, FP8: tl.constexpr, GROUP: tl.constexpr,
    ROW_STRIDE: tl.constexpr, GROUP_STRIDE: tl.constexpr, WIDENED: tl.constexpr, INT4: tl.constexpr,
    PER_WORD: tl.constexpr, PACKED: tl.constexpr, PRECISION: tl.constexpr, GELU: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """One tile of one expert's product, transposed: the weight is the first factor of the matrix unit, which may stay
    in registers.

    x [pairs / SHARED, IN]: `SHARED` pairs read the same row; weight [EXPERTS * OUT, IN], with twice as many rows if
    `GATED`; out [pairs, OUT]. `GATED`: a second product, of the rows after the gate's, is multiplied with the gate's
    result. `GROUP` columns of the weight share a scale; 0: a row has one, or the weight has none. `FP8`: weight and x
    are in FP8, with x_scales [pairs / SHARED] float32; the matrix unit sums their products with too few bits, so the
    sums of blocks are added up in float32. `WIDENED`: FP8 becomes float32 first, for an interpreter, which cannot
    multiply it.
    """
    await_previous(CHAINED)
    tile = tl.program_id(0) % tiles  # tiles of one expert, beside each other, read the same part of its weight
    column = tl.program_id(0) // tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    each = tl.arange(0, EXPERTS_WIDTH)
    ends = tl.load(ends_ptr + each, mask=each < EXPERTS, other=1 << 30)
    expert = tl.sum((ends <= tile).to(tl.int32), axis=0).to(tl.int64)
    if expert >= EXPERTS:
        return
    pair = tl.load(order_ptr + tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    real = (pair >= 0)[:, None]
    ROWS: tl.constexpr = 2 * OUT if GATED else OUT
    inside = column < OUT
    x_rows = x_ptr + (pair // SHARED * IN)[:, None]
    weight_row = expert * ROWS + column
    row_scales = weight_row * ROW_STRIDE
    up_scales = row_scales + OUT * ROW_STRIDE
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    second = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    if INT4:
        OF_BLOCK: tl.constexpr = BLOCK_K // PER_WORD
        word_rows = weight_ptr + (weight_row * (IN // PER_WORD))[:, None]
        for block in range(IN // BLOCK_K):
            word = word_rows + (block * OF_BLOCK + tl.arange(0, OF_BLOCK))[None, :]
            x = tl.load(x_rows + (block * BLOCK_K + tl.arange(0, BLOCK_K))[None, :], mask=real, other=0.0)
            group = block * BLOCK_K // GROUP * GROUP_STRIDE
            scale, zero = scales_and_zeros(scales_ptr + row_scales + group, inside)
            weight = int4_numbers(tl.load(word, mask=inside[:, None], other=0), zero, x.dtype, PACKED)
            acc += tl.dot(weight, x.T, input_precision=PRECISION) * scale[:, None]
            if GATED:
                scale, zero = scales_and_zeros(scales_ptr + up_scales + group, inside)
                words = tl.load(word + OUT * (IN // PER_WORD), mask=inside[:, None], other=0)
                weight = int4_numbers(words, zero, x.dtype, PACKED)
                second += tl.dot(weight, x.T, input_precision=PRECISION) * scale[:, None]
    else:
        weight_rows = weight_ptr + (weight_row * IN)[:, None]
        for start in range(0, IN, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            x = tl.load(x_rows + k[None, :], mask=real & (k < IN)[None, :], other=0.0)
            mask = inside[:, None] & (k < IN)[None, :]
            weight = tl.load(weight_rows + k[None, :], mask=mask, other=0.0)
            if WIDENED:
                weight, x = weight.to(tl.float32), x.to(tl.float32)
            if GROUP:
                group = start // GROUP * GROUP_STRIDE
                scale = tl.load(scales_ptr + row_scales + group, mask=inside, other=0.0)
                acc += tl.dot(weight, x.T, input_precision=PRECISION) * scale[:, None]
            else:
                acc = tl.dot(weight, x.T, acc, input_precision=PRECISION, max_num_imprecise_acc=BLOCK_K)
            if GATED:
                weight = tl.load(weight_rows + OUT * IN + k[None, :], mask=mask, other=0.0)
                if WIDENED:
                    weight = weight.to(tl.float32)
                if GROUP:
                    group = start // GROUP * GROUP_STRIDE
                    scale = tl.load(scales_ptr + up_scales + group, mask=inside, other=0.0)
                    second += tl.dot(weight, x.T, input_precision=PRECISION) * scale[:, None]
                else:
                    second = tl.dot(weight, x.T, second, input_precision=PRECISION, max_num_imprecise_acc=BLOCK_K)
    kind = out_ptr.dtype.element_ty
    if FP8:
        of_x = tl.load(x_scales_ptr + pair // SHARED, mask=pair >= 0, other=0.0)[None, :]
        acc *= of_x
        second *= of_x
        if not GROUP:
            acc *= tl.load(scales_ptr + weight_row, mask=inside, other=0.0)[:, None]
            if GATED:
                second *= tl.load(scales_ptr + weight_row + OUT, mask=inside, other=0.0)[:, None]
    if GATED:
        active = activation(acc.to(kind).to(tl.float32), GELU).to(kind).to(tl.float32)
        acc = active * second.to(kind).to(tl.float32)
    tl.store(out_ptr + (pair * OUT)[:, None] + column[None, :], acc.T.to(kind), mask=real & inside[None, :])


@triton.jit
def _add_up(
    parts_ptr, weights_ptr, out_ptr, DIM: tl.constexpr, CHOICES: tl.constexpr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    await_previous(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = weighted_sum(parts_ptr, weights_ptr, token, column, DIM, CHOICES)
    tl.store(out_ptr + token * DIM + column, total.to(out_ptr.dtype.element_ty), mask=column < DIM)
