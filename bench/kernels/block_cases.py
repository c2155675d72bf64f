"""The small operations of a block, measured against torch's own functions, alone and compiled into one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...kernels import elementwise
from ...kernels.common.types import FeedForwardNorms, Fp8Heads
from ...kernels.elementwise import reference
from .cases import (
    DIFFUSION_GEMMA,
    DREAM,
    ITEM,
    LLADA,
    PAGE_SIZE,
    SMALL,
    TOKENS,
    Case,
    Inputs,
    Shape,
    Workload,
    compiled,
    drawn,
    eager,
)

EPS = 1e-5
CHOICES = 8  # experts of a token


def cases(quick: bool) -> list[Case]:
    sizes = [(SMALL, 64)] if quick else [*((LLADA, tokens) for tokens in TOKENS), (DREAM, TOKENS[-1])]
    made = embed, rms_norm, add_rms_norm, rope_write_kv, swiglu, fp8_rope_write_kv
    sandwiched = [(SMALL, 64)] if quick else [(DIFFUSION_GEMMA, tokens) for tokens in TOKENS]
    return [
        *(make(*size) for make in made for size in sizes),
        *(make(*size) for make in (add_attention, add_feed_forward) for size in sandwiched),
    ]


def embed(shape: Shape, tokens: int) -> Case:
    def inputs(device: torch.device, sets: int) -> Inputs:
        table = drawn((shape.vocabulary, shape.dim), device)
        where = torch.zeros(tokens, dtype=torch.int64, device=device), torch.arange(tokens, device=device)
        return [
            (torch.randint(shape.vocabulary, (1, tokens), device=device), *where, table) for _ in range(sets)
        ]  # fmt: skip

    def embedding(canvases: Tensor, slots: Tensor, positions: Tensor, table: Tensor) -> Tensor:
        return F.embedding(canvases[slots, positions], table)

    return Case(
        "embed", f"{shape.name}, {tokens} tokens", Workload(tokens * (2 * shape.dim * ITEM + 3 * 8)), inputs,
        elementwise.embed, reference.embed, [eager("F.embedding", embedding), compiled(embedding)],
    )  # fmt: skip


def rms_norm(shape: Shape, tokens: int) -> Case:
    def inputs(device: torch.device, sets: int) -> Inputs:
        weight = drawn((shape.dim,), device)
        return [(drawn((tokens, shape.dim), device), weight, EPS) for _ in range(sets)]

    return Case(
        "rms_norm", f"{shape.name}, {tokens} tokens", Workload((2 * tokens + 1) * shape.dim * ITEM), inputs,
        elementwise.rms_norm, reference.rms_norm, [eager("F.rms_norm", _library_norm), compiled(_library_norm)],
    )  # fmt: skip


def _library_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm(shape: Shape, tokens: int) -> Case:
    def inputs(device: torch.device, sets: int) -> Inputs:
        weight, size = drawn((shape.dim,), device), (tokens, shape.dim)
        return [(drawn(size, device), drawn(size, device), weight, EPS) for _ in range(sets)]

    def add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = residual + x
        return F.rms_norm(total, weight.shape, weight, eps), total

    return Case(
        "add_rms_norm", f"{shape.name}, {tokens} tokens", Workload((4 * tokens + 1) * shape.dim * ITEM), inputs,
        elementwise.add_rms_norm, reference.add_rms_norm, [eager("+, F.rms_norm", add_norm), compiled(add_norm)],
    )  # fmt: skip


def add_attention(shape: Shape, tokens: int) -> Case:
    def inputs(device: torch.device, sets: int) -> Inputs:
        norms, size = drawn((4, shape.dim), device).unbind(0), (tokens, shape.dim)
        return [(drawn(size, device), drawn(size, device), *norms, EPS) for _ in range(sets)]

    def one_by_one(
        x: Tensor, residual: Tensor, post: Tensor, mlp: Tensor, experts: Tensor, router: Tensor, eps: float
    ) -> tuple[Tensor, ...]:
        total = residual + _library_norm(x, post, eps)
        dense, found, routed = (_library_norm(total, weight, eps) for weight in (mlp, experts, router))
        return dense, found, routed.float() * shape.dim**-0.5, total

    work = Workload((5 * tokens + 4) * shape.dim * ITEM + 4 * tokens * shape.dim)
    return Case(
        "add_attention", f"{shape.name}, {tokens} tokens", work, inputs, elementwise.add_attention,
        reference.add_attention, [eager("+, F.rms_norm", one_by_one), compiled(one_by_one)],
    )  # fmt: skip


def add_feed_forward(shape: Shape, tokens: int) -> Case:
    """Every other token is a canvas's. The outputs of its experts are added up on the way."""

    def inputs(device: torch.device, sets: int) -> Inputs:
        norms, size = drawn((4, shape.dim), device).unbind(0), (tokens, shape.dim)
        factors, kinds = drawn((2,), device), torch.arange(tokens, dtype=torch.int32, device=device) % 2
        post_norms = FeedForwardNorms(*norms[:3])
        parts, weights = (tokens, CHOICES, shape.dim), torch.rand((tokens, CHOICES), device=device)
        return [
            (drawn(size, device), drawn(parts, device), weights, drawn(size, device), post_norms, factors, kinds,
             norms[3], EPS) for _ in range(sets)
        ]  # fmt: skip

    def one_by_one(
        dense: Tensor, parts: Tensor, weights: Tensor, residual: Tensor, post_norms: FeedForwardNorms, factors: Tensor,
        kinds: Tensor, next_norm: Tensor, eps: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        found = torch.bmm(weights.to(parts.dtype)[:, None], parts)[:, 0]
        both = _library_norm(dense, post_norms.mlp, eps) + _library_norm(found, post_norms.experts, eps)
        total = (residual + _library_norm(both, post_norms.both, eps)) * factors[kinds][:, None]
        return _library_norm(total, next_norm, eps), total

    work = Workload(((4 + CHOICES) * tokens + 4) * shape.dim * ITEM + 2 * ITEM + 4 * tokens + 4 * tokens * CHOICES)
    return Case(
        "add_feed_forward", f"{shape.name}, {tokens} tokens", work, inputs, elementwise.add_feed_forward,
        reference.add_feed_forward, [eager("bmm, +, F.rms_norm, *", one_by_one), compiled(one_by_one)],
    )  # fmt: skip


def swiglu(shape: Shape, tokens: int) -> Case:
    def inputs(device: torch.device, sets: int) -> Inputs:
        return [(drawn((tokens, 2 * shape.ff_dim), device),) for _ in range(sets)]

    def silu_times(gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate) * up

    return Case(
        "swiglu", f"{shape.name}, {tokens} tokens", Workload(3 * tokens * shape.ff_dim * ITEM), inputs,
        elementwise.swiglu, reference.swiglu, [eager("F.silu, *", silu_times), compiled(silu_times)],
    )  # fmt: skip


def rope_write_kv(shape: Shape, tokens: int) -> Case:
    parts, head_dim = shape.heads + 2 * shape.kv_heads, shape.head_dim
    pages = 2 * -(-tokens // PAGE_SIZE)

    def inputs(device: torch.device, sets: int) -> Inputs:
        cache = pages, PAGE_SIZE, shape.kv_heads, head_dim
        angles = torch.rand((tokens, head_dim // 2), device=device).mul_(6.28).repeat(1, 2)
        return [
            (
                drawn((tokens, parts, head_dim), device), angles.cos(), angles.sin(), drawn(cache, device),
                drawn(cache, device), torch.randperm(pages * PAGE_SIZE, device=device)[:tokens],
            )
            for _ in range(sets)
        ]  # fmt: skip

    def ours(qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, places: Tensor) -> tuple[Tensor, ...]:
        return elementwise.rope_write_kv(qkv, cos, sin, keys, values, places), keys, values

    def plain(
        qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, places: Tensor
    ) -> tuple[Tensor, ...]:
        return reference.rope_write_kv(qkv, cos, sin, keys, values, places), keys, values

    def rotate_and_put(
        qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, places: Tensor
    ) -> tuple[Tensor, ...]:
        rotated = qkv[:, : shape.heads + shape.kv_heads].float()
        low, high = rotated.chunk(2, -1)
        rotated = (rotated * cos[:, None] + torch.cat((-high, low), -1) * sin[:, None]).to(qkv.dtype)
        keys[places // PAGE_SIZE, places % PAGE_SIZE] = rotated[:, shape.heads :]
        values[places // PAGE_SIZE, places % PAGE_SIZE] = qkv[:, shape.heads + shape.kv_heads :]
        return rotated[:, : shape.heads], keys, values

    work = Workload(tokens * (2 * parts * head_dim * ITEM + 2 * head_dim * 4 + 8))
    return Case(
        "rope_write_kv", f"{shape.name}, {tokens} tokens", work, inputs, ours, plain,
        [eager("torch", rotate_and_put), compiled(rotate_and_put)], reference_graph=False,
    )  # fmt: skip


def fp8_rope_write_kv(shape: Shape, tokens: int) -> Case:
    """Keys and values in FP8. Numbers that are a rounding apart may become neighbours: scales are compared."""
    plain_case, parts, head_dim = rope_write_kv(shape, tokens), shape.heads + 2 * shape.kv_heads, shape.head_dim

    def inputs(device: torch.device, sets: int) -> Inputs:
        drawn_sets: Inputs = []
        for qkv, cos, sin, keys, values, places in plain_case.inputs(device, sets):
            rounded = [Fp8Heads.zeros(keys.shape, device) for _ in range(2)]
            drawn_sets.append((qkv, cos, sin, *rounded, places, keys, values))
        return drawn_sets

    def ours(
        qkv: Tensor, cos: Tensor, sin: Tensor, keys: Fp8Heads, values: Fp8Heads, places: Tensor, *_: object
    ) -> tuple[Tensor, ...]:
        return elementwise.rope_write_kv(qkv, cos, sin, keys, values, places), keys.scales, values.scales

    def plain(
        qkv: Tensor, cos: Tensor, sin: Tensor, keys: Fp8Heads, values: Fp8Heads, places: Tensor, *_: object
    ) -> tuple[Tensor, ...]:
        return reference.rope_write_kv(qkv, cos, sin, keys, values, places), keys.scales, values.scales

    def in_bfloat16(
        qkv: Tensor, cos: Tensor, sin: Tensor, _k: object, _v: object, places: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, ...]:
        return elementwise.rope_write_kv(qkv, cos, sin, keys, values, places), keys, values

    written = shape.heads * head_dim * ITEM + 2 * shape.kv_heads * (head_dim + 4)
    work = Workload(tokens * (parts * head_dim * ITEM + written + 2 * head_dim * 4 + 8))
    return Case(
        "fp8_rope_write_kv", plain_case.load, work, inputs, ours, plain, [eager("ours in bfloat16", in_bfloat16)],
        reference_graph=False,
    )  # fmt: skip
