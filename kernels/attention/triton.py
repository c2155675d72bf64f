"""Attention reads paged keys without gathering them first, at one launch for rows of any length.

The loop is FlashAttention-2's (Dao, 2023), the splits of a row's keys are Flash-Decoding's (Dao et al., 2023): the
program that ends last adds up what the splits of a tile have found. A block of keys lies in one page, so the GPU's bulk
copy engine fetches it whole, while the number of the next page is on its way.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..common.checks import FLOATS, expect
from ..common.triton_launch import await_previous, chained
from ..common.types import PagedHeads, paged_parts
from .tiles import (
    MOST_SPLITS,
    PROGRAMS,
    TILE_WORDS,
    AttentionPlan,
    AttentionWindow,
    arrival_words,
    plan_attention,
    split_floats,
    tile_queries,
)

LOG2E = tl.constexpr(1.4426950408889634)
# Where a running maximum starts. Not -inf: a query that sees nothing of a block would compute inf - inf.
LOWEST = tl.constexpr(-1.0e30)
FEW_TOKENS = 512
UNLIMITED = AttentionWindow()


def paged_attention(
    queries: Tensor,
    keys: PagedHeads,
    values: PagedHeads,
    page_table: Tensor,
    row_starts: Tensor,
    visible: Tensor,
    block_size: int = 0,
    positions: Tensor | None = None,
    mask_offsets: Tensor | None = None,
    plan: AttentionPlan | None = None,
    causal_offsets: Tensor | None = None,
    window: AttentionWindow | None = None,
    scale: float | None = None,
) -> Tensor:
    """queries fp16, bf16 or float32; D and the page size are powers of two from 16.

    In a CUDA graph give a `plan`: every number of a row is read on the device, and only the plan's capacity and config
    are fixed. Rows after the last real one are empty (`row_starts` repeats its end). The
    result of tokens without a row is undefined.
    """
    expect("queries", queries, ("T", "H", "D"), FLOATS)
    tokens, heads, head_dim = queries.shape
    key_numbers, value_numbers, key_scales, value_scales = paged_parts(keys, values, head_dim, queries.dtype)
    _require(queries, key_numbers, page_table, row_starts, visible)
    rows, page_size, kv_heads = len(visible), keys.shape[1], keys.shape[2]
    if block_size or mask_offsets is not None or causal_offsets is not None:
        if positions is None:
            wanted = "block_size" if block_size else "causal_offsets" if mask_offsets is None else "mask_offsets"
            raise ValueError(f"{wanted} needs positions")
        expect("positions", positions, (tokens,), (torch.int64,))
    if mask_offsets is not None:
        expect("mask_offsets", mask_offsets, (rows,), (torch.int32,))
    if causal_offsets is not None:
        expect("causal_offsets", causal_offsets, (rows,), (torch.int32,))
    window = window or UNLIMITED
    canvas_starts = window.canvas_starts
    if window is not UNLIMITED and (block_size != 1 or mask_offsets is not None):
        raise ValueError("window goes with block_size 1, and with no mask_offsets")
    if canvas_starts is not None:
        expect("canvas_starts", canvas_starts, (rows,), (torch.int32,))
    out = torch.empty((tokens, heads * head_dim), dtype=queries.dtype, device=queries.device)
    if plan is None:
        plan = plan_attention(queries, keys, row_starts, visible)
    config = plan.config
    expect("the plan's tiles", plan.tiles, ("tiles", TILE_WORDS), (torch.int32,))
    group = heads // kv_heads
    if group % config.parts or config.block_m < group // config.parts:
        raise ValueError(f"{config.parts} tiles of {config.block_m} cannot hold {group} heads of one key head")
    block_n = min(config.block_n, page_size)
    count, groups = len(plan.tiles), kv_heads * config.parts
    arrivals, partial = plan.arrivals, out
    if arrivals is not None:
        expect("the plan's arrivals", arrivals, ("programs",), (torch.int32,))
        if len(arrivals) < arrival_words(groups):
            raise ValueError(f"the plan counts {len(arrivals)} programs; {groups} groups need {arrival_words(groups)}")
        partial = out.new_empty(split_floats(config.block_m, groups, head_dim), dtype=torch.float32)
    # A graph's list of tiles is long, for many short rows, and mostly padding: with few tokens programs take turns.
    fewest = max(-(-PROGRAMS // groups), -(-tokens // tile_queries(config, heads, kv_heads)))
    turns = tokens <= FEW_TOKENS and fewest < count
    grid = (groups, fewest) if turns else (count, groups)
    # Positions and offsets that are not given are not read: any int32 tensor stands in for them.
    _attend[grid](
        queries, _rows_of(key_numbers, block_n), _rows_of(value_numbers, block_n), key_scales, value_scales,
        page_table, row_starts, visible, row_starts if positions is None else positions,
        row_starts if mask_offsets is None else mask_offsets, row_starts if causal_offsets is None else causal_offsets,
        row_starts if canvas_starts is None else canvas_starts, plan.tiles, out, partial,
        row_starts if arrivals is None else arrivals,
        (head_dim**-0.5 if scale is None else scale) * 1.4426950408889634, page_table.stride(0), count,
        HEADS=heads, KV_HEADS=kv_heads, PARTS=config.parts, DIM=head_dim, PAGE=page_size, BLOCK_M=config.block_m,
        BLOCK_N=block_n, TILE=TILE_WORDS, MOST=1 if arrivals is None else MOST_SPLITS, BLOCK=block_size,
        MASKS=mask_offsets is not None, CAUSAL=causal_offsets is not None, CANVASES=canvas_starts is not None,
        WINDOW=window.size, FP8=key_scales is not None, PRECISION="ieee" if queries.dtype == torch.float32 else "tf32",
        TURNS=turns, num_warps=config.warps, num_stages=config.stages, **chained(out),
    )  # fmt: skip
    return out


def _rows_of(cache: Tensor, block_n: int) -> TensorDescriptor:
    """Keys or values [pages, page_size, G, D] for the copy engine: positions by heads."""
    return TensorDescriptor.from_tensor(cache.view(-1, cache.shape[2] * cache.shape[3]), [block_n, cache.shape[3]])


def _require(queries: Tensor, keys: Tensor, page_table: Tensor, row_starts: Tensor, visible: Tensor) -> None:
    heads, head_dim = queries.shape[1:]
    expect("visible", visible, ("R",), (torch.int32,))
    rows = len(visible)
    expect("row_starts", row_starts, (rows + 1,), (torch.int32,))
    expect("page_table", page_table, (rows, "pages of a request"), (torch.int32,), contiguous=False)
    for name, size in (("head dim", head_dim), ("page size", keys.shape[1])):
        if size < 16 or size & (size - 1):
            raise ValueError(f"{name} must be a power of two from 16, not {size}")
    if not keys.shape[2] or heads % keys.shape[2]:
        raise ValueError(f"{heads} query heads cannot share {keys.shape[2]} key heads evenly")
    if page_table.stride(1) != 1:
        raise ValueError("rows of page_table must be contiguous")


@triton.jit(do_not_specialize=["table_stride", "tiles"])
def _attend(
    queries_ptr, keys, values, key_scales_ptr, value_scales_ptr, table_ptr, starts_ptr, visible_ptr, positions_ptr,
    mask_offsets_ptr, causal_offsets_ptr, canvas_starts_ptr, tiles_ptr, out_ptr, partial_ptr, arrivals_ptr, scale,
    table_stride, tiles, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, PARTS: tl.constexpr, DIM: tl.constexpr,
    PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TILE: tl.constexpr, MOST: tl.constexpr,
    BLOCK: tl.constexpr, MASKS: tl.constexpr, CAUSAL: tl.constexpr, CANVASES: tl.constexpr, WINDOW: tl.constexpr,
    FP8: tl.constexpr, PRECISION: tl.constexpr, TURNS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Tiles of queries of one key head, or of one of its PARTS, over one split of the keys: one tile, or with TURNS
    each that has its turn.

    keys, values: descriptors of [pages * page size, kv heads * head dim], read in blocks of BLOCK_N keys of one head;
    scale of scores, times log2(e): exponentials are powers of two. BLOCK 0: every query sees all keys. MASKS: queries
    of some rows do not see one key each. CAUSAL: those of some rows see keys before a place, and their own.
    CANVASES and WINDOW: as `AttentionWindow`. MOST: the most splits of a tile's keys. FP8: keys and values are, with
    scales; else there are none.
    """
    await_previous(CHAINED)
    if TURNS:  # programs of one tile are started beside each other: those of padding, which is last, delay none
        group, tile = tl.program_id(0), tl.program_id(1)
    else:
        tile, group = tl.program_id(0), tl.program_id(1)
    row = tl.load(tiles_ptr + TILE * tile)
    if TURNS:
        while row >= 0:
            _attend_tile(
                queries_ptr, keys, values, key_scales_ptr, value_scales_ptr, table_ptr, starts_ptr, visible_ptr,
                positions_ptr, mask_offsets_ptr, causal_offsets_ptr, canvas_starts_ptr, tiles_ptr, out_ptr, partial_ptr,
                arrivals_ptr, scale, table_stride, group, tile, row, HEADS, KV_HEADS, PARTS, DIM, PAGE, BLOCK_M,
                BLOCK_N, TILE, MOST, BLOCK, MASKS, CAUSAL, CANVASES, WINDOW, FP8, PRECISION,
            )  # fmt: skip
            tile += tl.num_programs(1)
            row = tl.load(tiles_ptr + TILE * tile, mask=tile < tiles, other=-1)
    elif row >= 0:
        _attend_tile(
            queries_ptr, keys, values, key_scales_ptr, value_scales_ptr, table_ptr, starts_ptr, visible_ptr,
            positions_ptr, mask_offsets_ptr, causal_offsets_ptr, canvas_starts_ptr, tiles_ptr, out_ptr, partial_ptr,
            arrivals_ptr, scale, table_stride, group, tile, row, HEADS, KV_HEADS, PARTS, DIM, PAGE, BLOCK_M, BLOCK_N,
            TILE, MOST, BLOCK, MASKS, CAUSAL, CANVASES, WINDOW, FP8, PRECISION,
        )  # fmt: skip


@triton.jit
def _attend_tile(
    queries_ptr, keys, values, key_scales_ptr, value_scales_ptr, table_ptr, starts_ptr, visible_ptr, positions_ptr,
    mask_offsets_ptr, causal_offsets_ptr, canvas_starts_ptr, tiles_ptr, out_ptr, partial_ptr, arrivals_ptr, scale,
    table_stride, group, tile, row, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, PARTS: tl.constexpr, DIM: tl.constexpr,
    PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TILE: tl.constexpr, MOST: tl.constexpr,
    BLOCK: tl.constexpr, MASKS: tl.constexpr, CAUSAL: tl.constexpr, CANVASES: tl.constexpr, WINDOW: tl.constexpr,
    FP8: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    GROUP: tl.constexpr = HEADS // KV_HEADS // PARTS
    kv_head = group // PARTS
    packed = tl.arange(0, BLOCK_M)  # queries of a tile times heads of a group
    token = tl.load(starts_ptr + row) + tl.load(tiles_ptr + TILE * tile + 1) + packed // GROUP
    valid = (packed < BLOCK_M // GROUP * GROUP) & (token < tl.load(starts_ptr + row + 1))
    pair = token.to(tl.int64) * HEADS + group * GROUP + packed % GROUP
    dim = tl.arange(0, DIM)
    spot = pair[:, None] * DIM + dim[None, :]
    q = tl.load(queries_ptr + spot, mask=valid[:, None], other=0.0)

    seen = tl.load(visible_ptr + row)
    limit = tl.where(valid, seen, 0)
    whole = seen  # keys that all queries of the tile see
    position = limit  # never read without blocks
    if BLOCK > 0:
        position = tl.load(positions_ptr + token, mask=valid, other=0).to(tl.int32)
        limit = tl.where(valid, tl.minimum((position // BLOCK + 1) * BLOCK, seen), 0)
        if CANVASES:
            canvas_start = tl.load(canvas_starts_ptr + row)
            position = tl.where(canvas_start >= 0, canvas_start, position)
            limit = tl.where(valid & (canvas_start >= 0), seen, limit)
        whole = tl.min(tl.where(valid, limit, seen), axis=0)
        seen = tl.max(limit, axis=0)
    first = limit  # the first key that each query sees: never read without a window
    earliest = 0  # turn of the first key that any query sees
    if WINDOW > 0:
        first = tl.where(valid, tl.maximum(position - (WINDOW - 1), 0), seen)
        earliest = tl.min(first, axis=0) // BLOCK_N
    masked = limit  # never read
    if MASKS:
        distance = tl.load(mask_offsets_ptr + row)
        at = tl.load(positions_ptr + token, mask=valid, other=0).to(tl.int32)
        masked = tl.where(distance > 0, at - distance, -1)
        whole = tl.where(distance > 0, 0, whole)
    own = limit  # never read, as what follows
    least, low = seen, seen
    if CAUSAL:
        back = tl.load(causal_offsets_ptr + row)
        place = tl.load(positions_ptr + token, mask=valid, other=0).to(tl.int32)
        own = tl.where((back >= 0) & valid, place, -1)
        limit = tl.where((back >= 0) & valid, place - back, limit)
        whole = tl.where(back >= 0, tl.minimum(whole, tl.min(tl.where(valid, limit, seen), axis=0)), whole)
        low = tl.where(back >= 0, tl.max(limit, axis=0), seen)
        least = tl.where(back >= 0, tl.min(tl.where(valid, place, seen), axis=0), seen)
        seen = tl.where(back >= 0, tl.max(own, axis=0) + 1, seen)
    turns = tl.cdiv(seen, BLOCK_N)
    begin, stop = earliest, turns
    split, splits = 0, 1
    if MOST > 1:
        split, splits = tl.load(tiles_ptr + TILE * tile + 2), tl.load(tiles_ptr + TILE * tile + 3)
        share = tl.cdiv(turns - earliest, splits)
        begin = tl.minimum(earliest + split * share, turns)
        stop = tl.minimum(begin + share, turns)
    inner = begin  # the first turn whose keys are in every query's window
    if WINDOW > 0:
        inner = tl.cdiv(tl.max(tl.where(valid, first, 0), axis=0), BLOCK_N)
        inner = tl.minimum(tl.maximum(inner, begin), stop)
    unmasked = tl.maximum(inner, tl.minimum(stop, whole // BLOCK_N))

    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    weight = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, DIM], tl.float32)
    table_ptr += row.to(tl.int64) * table_stride
    if WINDOW > 0:  # turns ascend, so that a query's sums do not depend on the others of its tile
        for turn in range(begin, inner):
            page = tl.load(table_ptr + turn * BLOCK_N // PAGE)
            acc, top, weight = _turn(
                acc, top, weight, q, page, turn, seen, limit, masked, own, least, low, first, scale, keys, values,
                key_scales_ptr, value_scales_ptr, kv_head, KV_HEADS, DIM, PAGE, BLOCK_N, True, BLOCK > 0, MASKS, CAUSAL,
                WINDOW, FP8, PRECISION,
            )  # fmt: skip
    page = tl.load(table_ptr + tl.maximum(tl.minimum(inner, turns - 1), 0) * BLOCK_N // PAGE)
    for turn in range(inner, unmasked):
        following = tl.load(table_ptr + tl.minimum(turn + 1, turns - 1) * BLOCK_N // PAGE)
        acc, top, weight = _turn(
            acc, top, weight, q, page, turn, seen, limit, masked, own, least, low, first, scale, keys, values,
            key_scales_ptr, value_scales_ptr, kv_head, KV_HEADS, DIM, PAGE, BLOCK_N, False, BLOCK > 0, MASKS, CAUSAL,
            WINDOW, FP8, PRECISION,
        )  # fmt: skip
        page = following
    for turn in range(unmasked, stop):
        page = tl.load(table_ptr + turn * BLOCK_N // PAGE)
        acc, top, weight = _turn(
            acc, top, weight, q, page, turn, seen, limit, masked, own, least, low, first, scale, keys, values,
            key_scales_ptr, value_scales_ptr, kv_head, KV_HEADS, DIM, PAGE, BLOCK_N, True, BLOCK > 0, MASKS, CAUSAL,
            WINDOW, FP8, PRECISION,
        )  # fmt: skip

    if MOST > 1 and splits > 1:
        _end_split(
            acc, top, weight, out_ptr, pair, valid, partial_ptr, arrivals_ptr,
            (tile - split) * (KV_HEADS * PARTS) + group, split, splits, KV_HEADS * PARTS, BLOCK_M, DIM, MOST,
        )  # fmt: skip
    else:
        acc = acc / tl.where(weight > 0, weight, 1.0)[:, None]
        tl.store(out_ptr + spot, acc.to(out_ptr.dtype.element_ty), mask=valid[:, None])


@triton.jit
def _turn(
    acc, top, weight, q, page, turn, seen, limit, masked, own, least, low, from_key, scale, keys, values,
    key_scales_ptr, value_scales_ptr, kv_head, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr, EDGE: tl.constexpr, BLOCK_CAUSAL: tl.constexpr, MASKS: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, FP8: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of keys: the new (sum of values, maximum, sum of weights)."""
    key = turn * BLOCK_N + tl.arange(0, BLOCK_N)
    first, column = page * PAGE + turn * BLOCK_N % PAGE, kv_head * DIM
    k = keys.load([first, column])
    of_scales = key  # never read without FP8
    if FP8:
        of_scales = (page.to(tl.int64) * KV_HEADS + kv_head) * PAGE + key % PAGE
        k = (k.to(tl.float32) * tl.load(key_scales_ptr + of_scales)[:, None]).to(q.dtype)
    scores = tl.dot(q, k.T, input_precision=PRECISION)
    if EDGE:  # after the last key anything may follow, NaN too
        if CAUSAL:
            sees = (key[None, :] < limit[:, None]) | (key[None, :] == own[:, None])
            scores = tl.where(sees, scores, float("-inf"))
        elif BLOCK_CAUSAL:
            scores = tl.where(key[None, :] < limit[:, None], scores, float("-inf"))
        else:
            scores = tl.where((key < seen)[None, :], scores, float("-inf"))
        if MASKS:
            scores = tl.where(key[None, :] != masked[:, None], scores, float("-inf"))
        if WINDOW > 0:
            scores = tl.where(key[None, :] >= from_key[:, None], scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, axis=1) * scale)
    weights = tl.exp2(scores * scale - higher[:, None])
    shrink = tl.exp2(top - higher)
    weight = weight * shrink + tl.sum(weights, axis=1)
    v = values.load([first, column])
    if FP8:
        v = (v.to(tl.float32) * tl.load(value_scales_ptr + of_scales)[:, None]).to(q.dtype)
    if EDGE:
        there = key < seen
        if CAUSAL:  # nobody may have computed what lies between
            there = there & ((key < low) | (key >= least))
        v = tl.where(there[:, None], v, 0.0)
    acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return acc, higher, weight


@triton.jit
def _end_split(
    acc, top, weight, out_ptr, pair, valid, partial_ptr, arrivals_ptr, first, split, splits, GROUPS: tl.constexpr,
    BLOCK_M: tl.constexpr, DIM: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Leave what a program has found where the last one of its tile's splits reads it, which stores the result: always
    added up in the order of the keys. `first`: the program of the first split, from which the others are GROUPS apart.
    """
    SIZE: tl.constexpr = BLOCK_M * (DIM + 2)  # maxima, sums of weights, sums of values
    COLUMNS: tl.constexpr = min(DIM, 2048 // BLOCK_M)  # added up at a time
    AHEAD: tl.constexpr = 4  # splits that are read at once
    packed = tl.arange(0, BLOCK_M)
    own_ptr = partial_ptr + (first + split * GROUPS) * SIZE
    tl.store(own_ptr + packed, top)
    tl.store(own_ptr + BLOCK_M + packed, weight)
    tl.store(own_ptr + 2 * BLOCK_M + packed[:, None] * DIM + tl.arange(0, DIM)[None, :], acc)
    tl.debug_barrier()  # one thread counts, for all
    if tl.atomic_add(arrivals_ptr + first, 1, sem="acq_rel") == splits - 1:
        tl.store(arrivals_ptr + first, 0)
        first_ptr = partial_ptr + first * SIZE
        number = tl.arange(0, MOST)[None, :]
        states_ptr = first_ptr + packed[:, None] + number * (GROUPS * SIZE)
        tops = tl.load(states_ptr, mask=number < splits, other=LOWEST, cache_modifier=".cg")
        weights = tl.load(states_ptr + BLOCK_M, mask=number < splits, other=0.0, cache_modifier=".cg")
        highest = tl.max(tops, axis=1)
        total = tl.sum(weights * tl.exp2(tops - highest[:, None]), axis=1)
        total = tl.where(total > 0, total, 1.0)
        for start in range(0, DIM, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            sums = tl.zeros([BLOCK_M, COLUMNS], tl.float32)
            for base in range(0, splits, AHEAD):
                for ahead in tl.static_range(AHEAD):
                    each_ptr = first_ptr + (base + ahead) * (GROUPS * SIZE)
                    read = packed * 0 + base + ahead < splits
                    top = tl.load(each_ptr + packed, mask=read, other=LOWEST, cache_modifier=".cg")
                    spots = 2 * BLOCK_M + packed[:, None] * DIM + column[None, :]
                    part = tl.load(each_ptr + spots, mask=read[:, None], other=0.0, cache_modifier=".cg")
                    sums += part * tl.exp2(top - highest)[:, None]
            sums = sums / total[:, None]
            spot = pair[:, None] * DIM + column[None, :]
            tl.store(out_ptr + spot, sums.to(out_ptr.dtype.element_ty), mask=valid[:, None])
