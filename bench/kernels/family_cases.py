"""Operations of some families, measured: choosing experts and their MLPs, norms of heads, other confidences."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...kernels import elementwise, experts
from ...kernels import measure as measures
from ...kernels.common.types import Draws, Prediction, QkNorm, Routing
from .cases import ITEM, PAGE_SIZE, TOKENS, Case, Inputs, Workload, compiled, drawn, eager

EPS = 1e-6


class Mixture(NamedTuple):
    """The sizes of a layer with experts, whose choice may have a bias, and their weights a scale of each expert."""

    name: str
    dim: int
    experts: int
    ff_dim: int
    routing: Routing
    biased: bool
    scaled: bool = False


class Heads(NamedTuple):
    """The sizes of normed heads, in which `rotary` numbers are rotated."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    rotary: int


LLADA2 = Mixture(
    "llada2-mini", 2048, 256, 512, Routing(8, sigmoid=True, normed=True, scale=2.5, groups=8, live_groups=4), True
)
LLADA_MOE = Mixture("llada-moe-7b", 2048, 64, 1024, Routing(8), False)
DIFFUSION_GEMMA = Mixture("diffusiongemma-26b", 2816, 128, 704, Routing(8, normed=True), False, True)
FEW = Mixture("small", 64, 8, 32, Routing(2, normed=True), False, True)
SDAR_HEADS = Heads("sdar-8b", 32, 8, 128, 128)
LLADA2_HEADS = Heads("llada2-mini", 16, 4, 128, 64)
FEW_HEADS = Heads("small", 4, 2, 64, 32)


def cases(quick: bool) -> list[Case]:
    mixtures = [(FEW, 64)]
    if not quick:
        mixtures = [(shape, tokens) for shape in (LLADA2, LLADA_MOE, DIFFUSION_GEMMA) for tokens in TOKENS]
    heads = [(FEW_HEADS, 64)] if quick else [*((SDAR_HEADS, tokens) for tokens in TOKENS), (LLADA2_HEADS, TOKENS[-1])]
    return [
        *(make(*size) for make in (route, experts_mlp) for size in mixtures),
        *(norm_rope_write_kv(*size) for size in heads),
        *(measure(count) for count in ((64,) if quick else TOKENS)),
    ]


def route(shape: Mixture, tokens: int) -> Case:
    def inputs(device: torch.device, sets: int) -> Inputs:
        size = tokens, shape.experts
        bias = torch.randn(shape.experts, device=device) / 8 if shape.biased else None
        scales = torch.rand(shape.experts, device=device) if shape.scaled else None
        return [(torch.randn(size, device=device), bias, shape.routing, scales) for _ in range(sets)]

    work = Workload(tokens * (shape.experts * 4 + shape.routing.chosen * 8))
    return Case("route", f"{shape.name}, {tokens} tokens", work, inputs, experts.route, experts.reference.route, [])


def experts_mlp(shape: Mixture, tokens: int) -> Case:
    """Each expert has as many tokens as the others, or one more: as many experts as there can be are read."""
    choices, inner, dim = shape.routing.chosen, shape.ff_dim, shape.dim
    pairs = tokens * choices

    def inputs(device: torch.device, sets: int) -> Inputs:
        drawings = []
        for _ in range(sets):
            order = torch.randperm(shape.experts, device=device)
            chosen = order[torch.arange(pairs, device=device) % shape.experts].int().view(tokens, choices)
            weights = torch.rand((tokens, choices), device=device) / choices
            gate_up = drawn((shape.experts * 2 * inner, dim), device) * dim**-0.5
            down = drawn((shape.experts * dim, inner), device) * inner**-0.5
            drawings.append((drawn((tokens, dim), device), gate_up, down, chosen, weights))
        return drawings

    def grouped(x: Tensor, gate_up: Tensor, down: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        order = chosen.flatten().argsort(stable=True)
        counts = torch.zeros(shape.experts, dtype=torch.int32, device=x.device)
        ends = counts.scatter_add_(0, chosen.flatten().long(), torch.ones_like(chosen.flatten())).cumsum(0).int()
        both = F.grouped_mm(x[order // choices], gate_up.view(shape.experts, -1, dim).mT, offs=ends)
        gate, up = both.chunk(2, -1)
        parts = F.grouped_mm(F.silu(gate) * up, down.view(shape.experts, dim, inner).mT, offs=ends)
        back = torch.empty_like(parts).index_copy_(0, order, parts)
        return (back.view(tokens, choices, dim).float() * weights[:, :, None]).sum(1).to(x.dtype)

    touched = min(shape.experts, pairs)
    work = Workload((touched * 3 * dim * inner + 2 * tokens * dim) * ITEM + pairs * 8, 2 * pairs * 3 * dim * inner)
    return Case(
        "experts_mlp", f"{shape.name}, {tokens} tokens", work, inputs, experts.experts_mlp,
        experts.reference.experts_mlp, [eager("grouped_mm", grouped)], reference_graph=False,
    )  # fmt: skip


def norm_rope_write_kv(shape: Heads, tokens: int) -> Case:
    queries, kv_heads, head_dim = shape.heads, shape.kv_heads, shape.head_dim
    parts, pages = queries + 2 * kv_heads, 2 * -(-tokens // PAGE_SIZE)

    def inputs(device: torch.device, sets: int) -> Inputs:
        cache = pages, PAGE_SIZE, kv_heads, head_dim
        angles = torch.rand((tokens, shape.rotary // 2), device=device).mul_(6.28).repeat(1, 2)
        extras = QkNorm(None, drawn((head_dim,), device), drawn((head_dim,), device), EPS)
        return [
            (
                drawn((tokens, parts, head_dim), device), angles.cos(), angles.sin(), drawn(cache, device),
                drawn(cache, device), torch.randperm(pages * PAGE_SIZE, device=device)[:tokens], extras,
            )
            for _ in range(sets)
        ]  # fmt: skip

    def ours(
        qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, places: Tensor, extras: QkNorm
    ) -> tuple[Tensor, ...]:
        return elementwise.rope_write_kv(qkv, cos, sin, keys, values, places, extras), keys, values

    def plain(
        qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, places: Tensor, extras: QkNorm
    ) -> tuple[Tensor, ...]:
        return elementwise.reference.rope_write_kv(qkv, cos, sin, keys, values, places, extras), keys, values

    def norm_and_put(
        qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, places: Tensor, extras: QkNorm
    ) -> tuple[Tensor, ...]:
        normed = torch.cat(
            (
                F.rms_norm(qkv[:, :queries], (head_dim,), extras.query_norm, extras.eps),
                F.rms_norm(qkv[:, queries : queries + kv_heads], (head_dim,), extras.key_norm, extras.eps),
            ),
            dim=1,
        )
        rotated = normed[..., : shape.rotary].float()
        low, high = rotated.chunk(2, -1)
        rotated = (rotated * cos[:, None] + torch.cat((-high, low), -1) * sin[:, None]).to(qkv.dtype)
        whole = torch.cat((rotated, normed[..., shape.rotary :]), -1)
        keys[places // PAGE_SIZE, places % PAGE_SIZE] = whole[:, queries:]
        values[places // PAGE_SIZE, places % PAGE_SIZE] = qkv[:, queries + kv_heads :]
        return whole[:, :queries], keys, values

    work = Workload(tokens * (2 * parts * head_dim * ITEM + 2 * shape.rotary * 4 + 8))
    return Case(
        "norm_rope_write_kv", f"{shape.name}, {tokens} tokens", work, inputs, ours, plain,
        [eager("torch", norm_and_put), compiled(norm_and_put)], reference_graph=False,
    )  # fmt: skip


def measure(count: int) -> Case:
    """Each of the first four measures has a quarter of the positions, and half of them have noise."""

    def inputs(device: torch.device, sets: int) -> Inputs:
        number = torch.arange(count, device=device)
        kinds, noise = (number % 4).int(), (number % 2).float()
        ones, off = torch.ones(count, device=device), torch.zeros(count, device=device)
        draws = Draws(ones, ones, off.int(), off, seeds=number, positions=number, steps=number)
        # No position here reads its logits: `noise` stands in for them.
        return [(noise, _found(count, device), kinds, noise, draws) for _ in range(sets)]

    work = Workload(count * (2 * 8 + 4 + 2 * 8 + 4 + 4 + 3 * 8 + 8))
    return Case("measure", f"{count} positions", work, inputs, measures.measure, measures.reference.measure, [])


def _found(count: int, device: torch.device) -> Prediction:
    commit_probability, margin = (torch.rand(count, dtype=torch.float64, device=device) for _ in range(2))
    tokens = torch.randint(1000, (count,), device=device)
    return Prediction(tokens, commit_probability, tokens, commit_probability, margin, torch.rand(count, device=device))
