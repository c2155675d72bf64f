"""Norms of rows and the sums before them, each in one kernel: a program has a whole row in its registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.checks import FLOATS, expect, expect_each
from ..common.triton_launch import await_previous, chained
from ..common.types import FeedForwardNorms


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    expect("x", x, ("T", "dim"), FLOATS)
    expect("weight", weight, (x.shape[1],), (x.dtype,))
    out = torch.empty_like(x)
    _norm(x[None], x, x, weight, out, eps, False)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    expect("x", x, ("T", "dim"), FLOATS)
    expect("residual", residual, tuple(x.shape), (x.dtype,))
    return add_rms_norm_of(x[None], residual, weight, eps)


def add_rms_norm_of(parts: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`add_rms_norm` of the sum of parts [S, T, dim], rounded to the type of residual [T, dim]."""
    expect("parts", parts, ("S", *residual.shape), FLOATS)
    expect("weight", weight, (residual.shape[1],), (residual.dtype,))
    out, total = torch.empty_like(residual), torch.empty_like(residual)
    _norm(parts, residual, total, weight, out, eps, True)
    return out, total


def _norm(parts: Tensor, residual: Tensor, total: Tensor, weight: Tensor, out: Tensor, eps: float, add: bool) -> None:
    count, tokens, dim = parts.shape
    if tokens:
        _norm_row[(tokens,)](
            parts, residual, total, weight, out, eps, parts.stride(0), DIM=dim, SUMMED=count, ADD=add, **_launch(dim),
            **chained(out),
        )  # fmt: skip


def _launch(dim: int) -> dict[str, int]:
    """The launch of programs that each have a whole row [dim] in their registers."""
    block = triton.next_power_of_2(dim)
    return {"BLOCK": block, "num_warps": min(8, max(1, block // 512))}


@triton.jit
def _norm_row(
    parts_ptr, residual_ptr, total_ptr, weight_ptr, out_ptr, eps, part_stride, DIM: tl.constexpr, BLOCK: tl.constexpr,
    SUMMED: tl.constexpr, ADD: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    await_previous(CHAINED)
    start = tl.program_id(0).to(tl.int64) * DIM
    column = tl.arange(0, BLOCK)
    inside = column < DIM
    kind = out_ptr.dtype.element_ty
    x = sum_of(parts_ptr + start + column, part_stride, inside, kind, SUMMED)
    if ADD:
        residual = tl.load(residual_ptr + start + column, mask=inside, other=0.0)
        x = _sum(residual, x)
        tl.store(total_ptr + start + column, x, mask=inside)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0)
    tl.store(out_ptr + start + column, _weighted(_scaled(x, eps, DIM), weight), mask=inside)


@triton.jit
def _scaled(x, eps, DIM: tl.constexpr):
    """A row over its root mean square, which is rounded before a weight multiplies, as torch does it."""
    wide = x.to(tl.float32)
    return (wide * (1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / DIM + eps))).to(x.dtype)


@triton.jit
def _weighted(x, weight):
    return (x.to(tl.float32) * weight.to(tl.float32)).to(x.dtype)


@triton.jit
def _sum(x, y):
    return (x.to(tl.float32) + y.to(tl.float32)).to(x.dtype)


@triton.jit
def sum_of(pointers, part_stride, inside, kind: tl.constexpr, SUMMED: tl.constexpr):
    """The numbers of the first part plus those of the others, in their order, rounded at last."""
    total = tl.load(pointers, mask=inside, other=0.0)
    if SUMMED > 1:
        for part in tl.static_range(1, SUMMED):
            total += tl.load(pointers + part * part_stride, mask=inside, other=0.0)
    return total.to(kind)


def add_attention(
    x: Tensor,
    residual: Tensor,
    post_norm: Tensor,
    mlp_norm: Tensor,
    experts_norm: Tensor,
    router_norm: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    expect("x", x, ("T", "dim"), FLOATS)
    tokens, dim = x.shape
    expect("residual", residual, (tokens, dim), (x.dtype,))
    norms = {"post_norm": post_norm, "mlp_norm": mlp_norm, "experts_norm": experts_norm, "router_norm": router_norm}
    expect_each((dim,), x.dtype, **norms)
    mlp_input, experts_input, total = (torch.empty_like(x) for _ in range(3))
    router_input = torch.empty_like(x, dtype=torch.float32)
    if tokens:
        _add_attention_row[(tokens,)](
            x, residual, *norms.values(), mlp_input, experts_input, router_input, total, eps, dim**-0.5, DIM=dim,
            **_launch(dim), **chained(x),
        )  # fmt: skip
    return mlp_input, experts_input, router_input, total


@triton.jit
def _add_attention_row(
    x_ptr, residual_ptr, post_norm_ptr, mlp_norm_ptr, experts_norm_ptr, router_norm_ptr, mlp_input_ptr,
    experts_input_ptr, router_input_ptr, total_ptr, eps, factor, DIM: tl.constexpr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    await_previous(CHAINED)
    column = tl.arange(0, BLOCK)
    inside = column < DIM
    spot = tl.program_id(0).to(tl.int64) * DIM + column
    # All that is read comes before the first sum, which every thread waits for.
    x = tl.load(x_ptr + spot, mask=inside, other=0.0)
    residual = tl.load(residual_ptr + spot, mask=inside, other=0.0)
    post_norm = tl.load(post_norm_ptr + column, mask=inside, other=0.0)
    mlp_norm = tl.load(mlp_norm_ptr + column, mask=inside, other=0.0)
    experts_norm = tl.load(experts_norm_ptr + column, mask=inside, other=0.0)
    router_norm = tl.load(router_norm_ptr + column, mask=inside, other=0.0)
    total = _sum(residual, _weighted(_scaled(x, eps, DIM), post_norm))
    tl.store(total_ptr + spot, total, mask=inside)
    scaled = _scaled(total, eps, DIM)
    tl.store(mlp_input_ptr + spot, _weighted(scaled, mlp_norm), mask=inside)
    tl.store(experts_input_ptr + spot, _weighted(scaled, experts_norm), mask=inside)
    tl.store(router_input_ptr + spot, _weighted(scaled, router_norm).to(tl.float32) * factor, mask=inside)


def add_feed_forward(
    mlp_output: Tensor,
    parts: Tensor,
    weights: Tensor,
    residual: Tensor,
    post_norms: FeedForwardNorms,
    factors: Tensor,
    kinds: Tensor | None,
    next_norm: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    expect("mlp_output", mlp_output, ("T", "dim"), FLOATS)
    tokens, dim = mlp_output.shape
    expect("parts", parts, (tokens, "K", dim), (mlp_output.dtype,))
    expect("weights", weights, tuple(parts.shape[:2]), (torch.float32,))
    expect("residual", residual, (tokens, dim), (mlp_output.dtype,))
    expect_each((dim,), mlp_output.dtype, **post_norms._asdict(), next_norm=next_norm)
    expect("factors", factors, (2,), (mlp_output.dtype,))
    if kinds is not None:
        expect("kinds", kinds, (tokens,), (torch.int32,))
    normed, total = torch.empty_like(mlp_output), torch.empty_like(mlp_output)
    if tokens:
        _add_feed_forward_row[(tokens,)](
            mlp_output, parts, weights, residual, *post_norms, factors, kinds, next_norm, normed, total, eps, DIM=dim,
            CHOICES=parts.shape[1], KINDS=kinds is not None, **_launch(dim), **chained(mlp_output),
        )  # fmt: skip
    return normed, total


@triton.jit
def _add_feed_forward_row(
    mlp_output_ptr, parts_ptr, weights_ptr, residual_ptr, mlp_norm_ptr, experts_norm_ptr, both_norm_ptr, factors_ptr,
    kinds_ptr, next_norm_ptr, normed_ptr, total_ptr, eps, DIM: tl.constexpr, CHOICES: tl.constexpr, KINDS: tl.constexpr,
    BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    await_previous(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < DIM
    spot = token * DIM + column
    # All that is read comes before the first sum, which every thread waits for.
    mlp_output = tl.load(mlp_output_ptr + spot, mask=inside, other=0.0)
    experts_output = weighted_sum(parts_ptr, weights_ptr, token, column, DIM, CHOICES).to(residual_ptr.dtype.element_ty)
    residual = tl.load(residual_ptr + spot, mask=inside, other=0.0)
    mlp_norm = tl.load(mlp_norm_ptr + column, mask=inside, other=0.0)
    experts_norm = tl.load(experts_norm_ptr + column, mask=inside, other=0.0)
    both_norm = tl.load(both_norm_ptr + column, mask=inside, other=0.0)
    next_norm = tl.load(next_norm_ptr + column, mask=inside, other=0.0)
    kind = 0
    if KINDS:
        kind = (tl.load(kinds_ptr + token) > 0).to(tl.int32)
    factor = tl.load(factors_ptr + kind)
    mlp_output = _weighted(_scaled(mlp_output, eps, DIM), mlp_norm)
    experts_output = _weighted(_scaled(experts_output, eps, DIM), experts_norm)
    both = _weighted(_scaled(_sum(mlp_output, experts_output), eps, DIM), both_norm)
    total = _weighted(_sum(residual, both), factor)
    tl.store(total_ptr + spot, total, mask=inside)
    tl.store(normed_ptr + spot, _weighted(_scaled(total, eps, DIM), next_norm), mask=inside)


@triton.jit
def weighted_sum(parts_ptr, weights_ptr, token, column, DIM: tl.constexpr, CHOICES: tl.constexpr):
    """The weighted sum [columns] float32 of a token's parts, in their order: parts [T, CHOICES, DIM], weights [T,
    CHOICES]."""
    total = tl.zeros(column.shape, tl.float32)
    for choice in tl.static_range(CHOICES):
        pair = token * CHOICES + choice
        part = tl.load(parts_ptr + pair * DIM + column, mask=column < DIM, other=0.0)
        total += part.to(tl.float32) * tl.load(weights_ptr + pair)
    return total
