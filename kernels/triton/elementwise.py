"""The small operations of a block read and write each number once, with what they compute kept in registers."""

# ruff: noqa: N803, N806 - what Triton compiles in is written in capitals
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..checks import FLOATS, expect

COLUMNS = 1024  # numbers of one program of an operation without a row-wide sum
TURNED = 1024  # numbers of heads that one program rotates


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [T, dim] over its root mean square, in float32, times weight [dim]."""
    expect("x", x, ("T", "dim"), FLOATS)
    expect("weight", weight, (x.shape[1],), (x.dtype,))
    out = torch.empty_like(x)
    _norm(x, x, x, weight, out, eps, False)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`residual + x` [T, dim], normed and as it is: (normed, sum)."""
    expect("x", x, ("T", "dim"), FLOATS)
    expect("residual", residual, tuple(x.shape), (x.dtype,))
    expect("weight", weight, (x.shape[1],), (x.dtype,))
    out, total = torch.empty_like(x), torch.empty_like(x)
    _norm(x, residual, total, weight, out, eps, True)
    return out, total


def _norm(x: Tensor, residual: Tensor, total: Tensor, weight: Tensor, out: Tensor, eps: float, add: bool) -> None:
    tokens, dim = x.shape
    if tokens:
        block = triton.next_power_of_2(dim)
        warps = min(8, max(1, block // 512))
        _norm_row[(tokens,)](x, residual, total, weight, out, eps, DIM=dim, BLOCK=block, ADD=add, num_warps=warps)


@triton.jit
def _norm_row(
    x_ptr, residual_ptr, total_ptr, weight_ptr, out_ptr, eps, DIM: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr
):
    start = tl.program_id(0).to(tl.int64) * DIM
    column = tl.arange(0, BLOCK)
    inside = column < DIM
    x = tl.load(x_ptr + start + column, mask=inside, other=0.0)
    if ADD:
        residual = tl.load(residual_ptr + start + column, mask=inside, other=0.0)
        x = (residual.to(tl.float32) + x.to(tl.float32)).to(x.dtype)
        tl.store(total_ptr + start + column, x, mask=inside)
    wide = x.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / DIM + eps)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    # Rounded before the weight as well, as torch does it.
    normed = (wide * scale).to(x.dtype).to(tl.float32) * weight
    tl.store(out_ptr + start + column, normed.to(x.dtype), mask=inside)


def swiglu(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2 * ff] -> silu(gate) * up [T, ff]."""
    expect("gate_up", gate_up, ("T", "2 * ff"), FLOATS)
    tokens, width = gate_up.shape
    if width % 2:
        raise ValueError(f"gate_up must have an even width, not {width}")
    ff = width // 2
    out = gate_up.new_empty((tokens, ff))
    if tokens:
        _swiglu[(tokens, triton.cdiv(ff, COLUMNS))](gate_up, out, FF=ff, BLOCK=COLUMNS)
    return out


@triton.jit
def _swiglu(gate_up_ptr, out_ptr, FF: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < FF
    gate = tl.load(gate_up_ptr + token * 2 * FF + column, mask=inside, other=0.0)
    up = tl.load(gate_up_ptr + token * 2 * FF + FF + column, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    tl.store(out_ptr + token * FF + column, (silu * up.to(tl.float32)).to(gate.dtype), mask=inside)


def rope_write_kv(qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, places: Tensor) -> Tensor:
    """Rotates queries and keys, writes keys and values to their places, returns the queries [T, H, D].

    qkv [T, H + 2 * G, D]; cos, sin [T, D] float32, half-split rotation in float32; keys, values
    [pages, page_size, G, D]; places [T] int64, `page * page_size + offset`, negative: nothing is written.
    """
    expect("qkv", qkv, ("T", "H + 2 * G", "D"), FLOATS)
    tokens, parts, head_dim = qkv.shape
    expect("keys", keys, ("pages", "page_size", "G", head_dim), (qkv.dtype,))
    expect("values", values, tuple(keys.shape), (qkv.dtype,))
    for name, angles in (("cos", cos), ("sin", sin)):
        expect(name, angles, (tokens, head_dim), (torch.float32,))
    expect("places", places, (tokens,), (torch.int64,))
    if head_dim % 2 or parts <= 2 * keys.shape[2]:
        raise ValueError(f"{parts} parts of {head_dim} hold no queries besides {keys.shape[2]} keys and values")
    kv_heads = keys.shape[2]
    heads = parts - 2 * kv_heads
    queries = qkv.new_empty((tokens, heads, head_dim))
    half = head_dim // 2
    width = triton.next_power_of_2(half)
    block = max(1, TURNED // (2 * width))
    if tokens:
        _rope[(tokens, triton.cdiv(parts, block))](
            qkv, cos, sin, keys, values, places, queries, HEADS=heads, KV_HEADS=kv_heads, HALF=half, WIDTH=width,
            BLOCK=block,
        )  # fmt: skip
    return queries


@triton.jit
def _rope(
    qkv_ptr, cos_ptr, sin_ptr, keys_ptr, values_ptr, places_ptr, queries_ptr, HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr, HALF: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    DIM: tl.constexpr = 2 * HALF
    PARTS: tl.constexpr = HEADS + 2 * KV_HEADS
    inside = column < HALF
    live = (head < PARTS) & inside
    spot = (token * PARTS + head) * DIM + column
    low = tl.load(qkv_ptr + spot, mask=live, other=0.0)
    high = tl.load(qkv_ptr + spot + HALF, mask=live, other=0.0)
    angle = token * DIM + column
    cos_low = tl.load(cos_ptr + angle, mask=inside, other=0.0)
    cos_high = tl.load(cos_ptr + angle + HALF, mask=inside, other=0.0)
    sin_low = tl.load(sin_ptr + angle, mask=inside, other=0.0)
    sin_high = tl.load(sin_ptr + angle + HALF, mask=inside, other=0.0)
    turned_low = (low.to(tl.float32) * cos_low - high.to(tl.float32) * sin_low).to(low.dtype)
    turned_high = (high.to(tl.float32) * cos_high + low.to(tl.float32) * sin_high).to(low.dtype)

    query = live & (head < HEADS)
    spot = (token * HEADS + head) * DIM + column
    tl.store(queries_ptr + spot, turned_low, mask=query)
    tl.store(queries_ptr + spot + HALF, turned_high, mask=query)
    place = tl.load(places_ptr + token).to(tl.int64)
    if place >= 0:
        key = live & (head >= HEADS) & (head < HEADS + KV_HEADS)
        spot = (place * KV_HEADS + head - HEADS) * DIM + column
        tl.store(keys_ptr + spot, turned_low, mask=key)
        tl.store(keys_ptr + spot + HALF, turned_high, mask=key)
        value = live & (head >= HEADS + KV_HEADS)
        spot = (place * KV_HEADS + head - HEADS - KV_HEADS) * DIM + column
        tl.store(values_ptr + spot, low, mask=value)
        tl.store(values_ptr + spot + HALF, high, mask=value)


def embed(canvases: Tensor, slots: Tensor, positions: Tensor, embedding: Tensor) -> Tensor:
    """Embeddings [T, dim] of the canvas tokens at (slots, positions).

    canvases [slots, length] int64; slots, positions [T] int64; embedding [V, dim].
    """
    expect("canvases", canvases, ("slots", "length"), (torch.int64,))
    expect("embedding", embedding, ("V", "dim"), FLOATS)
    expect("slots", slots, ("T",), (torch.int64,))
    expect("positions", positions, tuple(slots.shape), (torch.int64,))
    tokens, dim = len(slots), embedding.shape[1]
    out = embedding.new_empty((tokens, dim))
    if tokens:
        _embed[(tokens, triton.cdiv(dim, COLUMNS))](
            canvases, slots, positions, embedding, out, canvases.stride(0), DIM=dim, BLOCK=COLUMNS
        )
    return out


@triton.jit
def _embed(
    canvases_ptr, slots_ptr, positions_ptr, embedding_ptr, out_ptr, canvas_stride, DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    entry = tl.load(canvases_ptr + slot * canvas_stride + tl.load(positions_ptr + token)).to(tl.int64)
    row = tl.load(embedding_ptr + entry * DIM + column, mask=column < DIM)
    tl.store(out_ptr + token * DIM + column, row, mask=column < DIM)
