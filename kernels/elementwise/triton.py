"""The small operations of a block read and write each number once, with what they compute kept in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.checks import FLOATS, expect, expect_each
from ..common.triton_launch import await_previous, chained
from ..common.types import PLAIN, PagedHeads, QkNorm, paged_parts
from ..linear.reference import FP8_MAX, LEAST_SCALE
from .triton_norms import add_attention, add_feed_forward, add_rms_norm, rms_norm, sum_of

__all__ = [
    "add_attention",
    "add_feed_forward",
    "add_rms_norm",
    "embed",
    "geglu",
    "kv_places",
    "rms_norm",
    "rope_write_kv",
    "swiglu",
]

COLUMNS = 1024  # numbers of one program of an operation without a row-wide sum
ROTATED = 1024  # numbers of heads that one program rotates
PLACED = 256  # positions of one program that finds their places


def swiglu(gate_up: Tensor) -> Tensor:
    return _gated(gate_up[None], gate_up.dtype, gelu=False)


def swiglu_of(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """`swiglu` of the sum of parts [S, T, 2 * ff], rounded to `dtype`."""
    return _gated(parts, dtype, gelu=False)


def geglu(gate_up: Tensor) -> Tensor:
    return _gated(gate_up[None], gate_up.dtype, gelu=True)


def _gated(parts: Tensor, dtype: torch.dtype, gelu: bool) -> Tensor:
    expect("gate_up", parts[0], ("T", "2 * ff"), FLOATS)
    count, tokens, width = parts.shape
    if width % 2:
        raise ValueError(f"gate_up must have an even width, not {width}")
    ff = width // 2
    out = parts.new_empty((tokens, ff), dtype=dtype)
    if tokens:
        _glu[(tokens, triton.cdiv(ff, COLUMNS))](
            parts, out, parts.stride(0), FF=ff, SUMMED=count, BLOCK=COLUMNS, GELU=gelu, **chained(out)
        )
    return out


@triton.jit
def _glu(
    parts_ptr, out_ptr, part_stride, FF: tl.constexpr, SUMMED: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    await_previous(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < FF
    kind = out_ptr.dtype.element_ty
    gates = parts_ptr + token * 2 * FF + column
    gate = sum_of(gates, part_stride, inside, kind, SUMMED)
    up = sum_of(gates + FF, part_stride, inside, kind, SUMMED)
    active = activation(gate.to(tl.float32), GELU).to(kind).to(tl.float32)
    tl.store(out_ptr + token * FF + column, (active * up.to(tl.float32)).to(kind), mask=inside)


@triton.jit
def activation(wide, GELU: tl.constexpr):
    """SiLU, or the tanh form of GELU: 1 + tanh(u) is 2 / (1 + exp(-2 u))."""
    inner = wide
    if GELU:
        inner = 1.5957691216057308 * (wide + 0.044715 * wide * wide * wide)
    return wide / (1.0 + tl.exp(-inner))


def rope_write_kv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: PagedHeads,
    values: PagedHeads,
    places: Tensor,
    qk_norm: QkNorm = PLAIN,
) -> Tensor:
    expect("qkv", qkv, ("T", "H + 2 * G", "D"), FLOATS)
    return rope_write_kv_of(qkv[None], cos, sin, keys, values, places, qk_norm, qkv.dtype)


def rope_write_kv_of(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: PagedHeads,
    values: PagedHeads,
    places: Tensor,
    qk_norm: QkNorm,
    dtype: torch.dtype,
) -> Tensor:
    """`rope_write_kv` of the sum of qkv [S, T, H + 2 * G, D], rounded to `dtype`."""
    expect("qkv", qkv, ("S", "T", "H + 2 * G", "D"), FLOATS)
    count, tokens, parts, head_dim = qkv.shape
    to_keys, to_values, key_scales, value_scales = paged_parts(keys, values, head_dim, dtype)
    expect_each((tokens, cos.shape[-1]), torch.float32, cos=cos, sin=sin)
    expect("places", places, (tokens,), (torch.int64,))
    kv_heads, rotary = keys.shape[2], cos.shape[1]
    heads = parts - 2 * kv_heads
    if rotary % 2 or rotary > head_dim or heads < 1:
        raise ValueError(
            f"{parts} parts of {head_dim}, {rotary} of it rotated, hold no queries besides {kv_heads} keys and values"
        )
    if qk_norm.bias is not None:
        expect("bias", qk_norm.bias, (parts * head_dim,), (dtype,))
    for name, norm in (("query_norm", qk_norm.query_norm), ("key_norm", qk_norm.key_norm)):
        if norm is not None:
            expect(name, norm, (head_dim,), (dtype,))
    queries = torch.empty((tokens, heads, head_dim), dtype=dtype, device=qkv.device)
    half, rest = rotary // 2, head_dim - rotary
    width = triton.next_power_of_2(half)
    block = max(1, ROTATED // (2 * width))
    if tokens:
        _rope[(tokens, triton.cdiv(parts, block))](
            qkv, cos, sin, qk_norm.bias, qk_norm.query_norm, qk_norm.key_norm, to_keys, to_values, key_scales,
            value_scales, places, queries, qk_norm.eps, qkv.stride(0), HEADS=heads, KV_HEADS=kv_heads, HALF=half,
            WIDTH=width, REST=rest, REST_WIDTH=triton.next_power_of_2(max(1, rest)), BLOCK=block,
            BIAS=qk_norm.bias is not None, NORMS=qk_norm.query_norm is not None, VALUES=qk_norm.norms_values,
            SUMMED=count, PAGE=keys.shape[1], FP8=key_scales is not None, LEAST=LEAST_SCALE, MOST=FP8_MAX,
            **chained(queries),
        )  # fmt: skip
    return queries


@triton.jit
def _rope(
    qkv_ptr, cos_ptr, sin_ptr, bias_ptr, query_norm_ptr, key_norm_ptr, keys_ptr, values_ptr, key_scales_ptr,
    value_scales_ptr, places_ptr, queries_ptr, eps, part_stride, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    HALF: tl.constexpr, WIDTH: tl.constexpr, REST: tl.constexpr, REST_WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    BIAS: tl.constexpr, NORMS: tl.constexpr, VALUES: tl.constexpr, SUMMED: tl.constexpr, PAGE: tl.constexpr,
    FP8: tl.constexpr, LEAST: tl.constexpr, MOST: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    await_previous(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    tail = tl.arange(0, REST_WIDTH)[None, :]  # columns that are not rotated
    DIM: tl.constexpr = 2 * HALF + REST
    PARTS: tl.constexpr = HEADS + 2 * KV_HEADS
    inside = column < HALF
    live = (head < PARTS) & inside
    rest_live = (head < PARTS) & (tail < REST)
    spot = token * PARTS + head
    kind = queries_ptr.dtype.element_ty
    low = _part(qkv_ptr, bias_ptr, spot, head, column, live, kind, part_stride, DIM, BIAS, SUMMED)
    high = _part(qkv_ptr, bias_ptr, spot, head, column + HALF, live, kind, part_stride, DIM, BIAS, SUMMED)
    rest = low
    rotated_low, rotated_high, rotated_rest = low, high, low
    if REST > 0:
        rest = _part(
            qkv_ptr, bias_ptr, spot, head, tail + 2 * HALF, rest_live, kind, part_stride, DIM, BIAS, SUMMED
        )  # fmt: skip
        rotated_rest = rest
    if NORMS:
        wide_low, wide_high = low.to(tl.float32), high.to(tl.float32)
        total = tl.sum(wide_low * wide_low, axis=1) + tl.sum(wide_high * wide_high, axis=1)
        if REST > 0:
            total += tl.sum(rest.to(tl.float32) * rest.to(tl.float32), axis=1)
        scale = (1.0 / tl.sqrt(total / DIM + eps))[:, None]
        is_query = head < HEADS
        rotated_low = _normed(low, scale, query_norm_ptr, key_norm_ptr, column, inside, is_query)
        rotated_high = _normed(high, scale, query_norm_ptr, key_norm_ptr, column + HALF, inside, is_query)
        if REST > 0:
            rotated_rest = _normed(
                rest, scale, query_norm_ptr, key_norm_ptr, tail + 2 * HALF, tail < REST, is_query
            )  # fmt: skip
        if VALUES:
            low, high = (wide_low * scale).to(kind), (wide_high * scale).to(kind)
            if REST > 0:
                rest = (rest.to(tl.float32) * scale).to(kind)
    angle = token * 2 * HALF + column
    cos_low = tl.load(cos_ptr + angle, mask=inside, other=0.0)
    cos_high = tl.load(cos_ptr + angle + HALF, mask=inside, other=0.0)
    sin_low = tl.load(sin_ptr + angle, mask=inside, other=0.0)
    sin_high = tl.load(sin_ptr + angle + HALF, mask=inside, other=0.0)
    wide_low, wide_high = rotated_low.to(tl.float32), rotated_high.to(tl.float32)
    rotated_low = (wide_low * cos_low - wide_high * sin_low).to(low.dtype)
    rotated_high = (wide_high * cos_high + wide_low * sin_high).to(low.dtype)

    place = tl.load(places_ptr + token).to(tl.int64)
    to = (queries_ptr, keys_ptr, values_ptr)
    unit = cos_low  # never read without FP8
    if FP8:
        is_key = head < HEADS + KV_HEADS
        unit = _unit(
            tl.where(is_key, rotated_low, low), tl.where(is_key, rotated_high, high),
            tl.where(is_key, rotated_rest, rest), REST, LEAST, MOST,
        )  # fmt: skip
        if place >= 0:
            key, value = head - HEADS, head - HEADS - KV_HEADS
            first, offset = place // PAGE * KV_HEADS, place % PAGE
            tl.store(key_scales_ptr + (first + key) * PAGE + offset, unit, mask=(key >= 0) & is_key)
            tl.store(
                value_scales_ptr + (first + value) * PAGE + offset, unit, mask=(value >= 0) & (head < PARTS)
            )  # fmt: skip
    _put(to, rotated_low, low, unit, head, column, live, token, place, HEADS, KV_HEADS, DIM, FP8, MOST)
    _put(to, rotated_high, high, unit, head, column + HALF, live, token, place, HEADS, KV_HEADS, DIM, FP8, MOST)
    if REST > 0:
        _put(
            to, rotated_rest, rest, unit, head, tail + 2 * HALF, rest_live, token, place, HEADS, KV_HEADS, DIM, FP8,
            MOST,
        )  # fmt: skip


@triton.jit
def _part(
    qkv_ptr, bias_ptr, spot, head, column, live, kind: tl.constexpr, part_stride, DIM: tl.constexpr,
    BIAS: tl.constexpr, SUMMED: tl.constexpr,
):  # fmt: skip
    part = sum_of(qkv_ptr + spot * DIM + column, part_stride, live, kind, SUMMED)
    if BIAS:
        bias = tl.load(bias_ptr + head * DIM + column, mask=live, other=0.0)
        part = (part.to(tl.float32) + bias.to(tl.float32)).to(part.dtype)
    return part


@triton.jit
def _normed(part, scale, query_norm_ptr, key_norm_ptr, column, inside, is_query):
    query_norm = tl.load(query_norm_ptr + column, mask=inside, other=0.0).to(tl.float32)
    key_norm = tl.load(key_norm_ptr + column, mask=inside, other=0.0).to(tl.float32)
    normed = (part.to(tl.float32) * scale).to(part.dtype).to(tl.float32)
    return (normed * tl.where(is_query, query_norm, key_norm)).to(part.dtype)


@triton.jit
def _unit(low, high, rest, REST: tl.constexpr, LEAST: tl.constexpr, MOST: tl.constexpr):
    """The scale of each head by which its largest number becomes MOST; NaN for a head with NaN or infinity, since
    maxima ignore NaN."""
    low, high = low.to(tl.float32), high.to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(low), axis=1), tl.max(tl.abs(high), axis=1))
    zero = tl.sum(low * 0.0, axis=1) + tl.sum(high * 0.0, axis=1)
    if REST > 0:
        rest = rest.to(tl.float32)
        largest = tl.maximum(largest, tl.max(tl.abs(rest), axis=1))
        zero += tl.sum(rest * 0.0, axis=1)
    return (tl.maximum(tl.math.div_rn(largest, tl.zeros_like(largest) + MOST), LEAST) + zero)[:, None]


@triton.jit
def _put(
    to, rotated, plain, unit, head, column, live, token, place, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    DIM: tl.constexpr, FP8: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Store numbers of queries and keys as they are rotated, and of values as they are; with FP8 over their scale."""
    queries_ptr, keys_ptr, values_ptr = to
    tl.store(queries_ptr + (token * HEADS + head) * DIM + column, rotated, mask=live & (head < HEADS))
    if place >= 0:
        key = live & (head >= HEADS) & (head < HEADS + KV_HEADS)
        kept = _kept(rotated, unit, FP8, MOST)
        tl.store(keys_ptr + (place * KV_HEADS + head - HEADS) * DIM + column, kept, mask=key)
        spot = place * KV_HEADS + head - HEADS - KV_HEADS
        kept = _kept(plain, unit, FP8, MOST)
        tl.store(values_ptr + spot * DIM + column, kept, mask=live & (head >= HEADS + KV_HEADS))


@triton.jit
def _kept(part, unit, FP8: tl.constexpr, MOST: tl.constexpr):
    kept = part
    if FP8:
        wide = part.to(tl.float32)
        scaled = tl.math.div_rn(wide, tl.zeros_like(wide) + unit)
        kept = tl.minimum(tl.maximum(scaled, -MOST), MOST).to(tl.float8e4nv)
    return kept


def embed(canvases: Tensor, slots: Tensor, positions: Tensor, embedding: Tensor) -> Tensor:
    expect("canvases", canvases, ("slots", "length"), (torch.int64,))
    expect("embedding", embedding, ("V", "dim"), FLOATS)
    expect("slots", slots, ("T",), (torch.int64,))
    expect("positions", positions, tuple(slots.shape), (torch.int64,))
    tokens, dim = len(slots), embedding.shape[1]
    out = embedding.new_empty((tokens, dim))
    if tokens:
        _embed[(tokens, triton.cdiv(dim, COLUMNS))](
            canvases,
            slots,
            positions,
            embedding,
            out,
            canvases.stride(0),
            DIM=dim,
            BLOCK=COLUMNS,
            **chained(out),
        )
    return out


@triton.jit
def _embed(
    canvases_ptr, slots_ptr, positions_ptr, embedding_ptr, out_ptr, canvas_stride, DIM: tl.constexpr,
    BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    await_previous(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    entry = tl.load(canvases_ptr + slot * canvas_stride + tl.load(positions_ptr + token)).to(tl.int64)
    row = tl.load(embedding_ptr + entry * DIM + column, mask=column < DIM)
    tl.store(out_ptr + token * DIM + column, row, mask=column < DIM)


def kv_places(table: Tensor, slots: Tensor, positions: Tensor, page_size: int) -> Tensor:
    expect("table", table, ("slots", "pages of a request"), (torch.int32,))
    expect("slots", slots, ("T",), (torch.int64,))
    expect("positions", positions, tuple(slots.shape), (torch.int64,))
    places = torch.empty_like(positions)
    tokens = len(slots)
    if tokens:
        _kv_places[(triton.cdiv(tokens, PLACED),)](
            table, slots, positions, places, tokens, table.stride(0), PAGE=page_size, BLOCK=PLACED, **chained(places)
        )
    return places


@triton.jit(do_not_specialize=["tokens", "stride"])
def _kv_places(
    table_ptr, slots_ptr, positions_ptr, places_ptr, tokens, stride, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    await_previous(CHAINED)
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    position = tl.load(positions_ptr + token, mask=token < tokens, other=-1)
    real = position >= 0
    slot = tl.load(slots_ptr + token, mask=real, other=0)
    page = tl.load(table_ptr + slot * stride + position // PAGE, mask=real, other=0).to(tl.int64)
    tl.store(places_ptr + token, tl.where(real, page * PAGE + position % PAGE, -1), mask=token < tokens)
