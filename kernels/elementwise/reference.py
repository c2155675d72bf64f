"""The small operations of a block in torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.types import PLAIN, FeedForwardNorms, Fp8Heads, PagedHeads, QkNorm
from ..linear.reference import quantize_rows


def embed(canvases: Tensor, slots: Tensor, positions: Tensor, embedding: Tensor) -> Tensor:
    """Embeddings [T, dim] of the canvas tokens at (slots, positions).

    canvases [slots, length] int64; slots, positions [T] int64; embedding [V, dim].
    """
    return embedding[canvases[slots, positions]]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., dim] over its root mean square, in float32, times weight [dim] (Zhang and Sennrich, 2019)."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype).mul_(weight)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(`rms_norm` of the sum, the sum) of `residual + x` [T, dim]."""
    total = residual + x
    return rms_norm(total, weight, eps), total


def add_attention(
    x: Tensor,
    residual: Tensor,
    post_norm: Tensor,
    mlp_norm: Tensor,
    experts_norm: Tensor,
    router_norm: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Add the normed output x [T, dim] of attention to residual [T, dim], and norm the sum for each of its readers.

    Returns the inputs of the MLP and of the experts, both [T, dim] in x's type; that of the router [T, dim] float32,
    divided by the root of dim; and the sum [T, dim]. All norms are [dim]. Source: transformers 5.24,
    models/diffusion_gemma.
    """
    total = residual + rms_norm(x, post_norm, eps)
    routed = rms_norm(total, router_norm, eps).float() * total.shape[-1] ** -0.5
    return rms_norm(total, mlp_norm, eps), rms_norm(total, experts_norm, eps), routed, total


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
    """Add up the normed outputs of an MLP and of experts, both [T, dim], norm their sum, add it to residual [T, dim],
    and multiply by the token's factor. Returns the result, normed by next_norm [dim] and as it is, both [T, dim].

    parts [T, K, dim] and weights [T, K] float32: the experts' output is `weighted_sum` of these. factors [2]: for
    tokens of kind 0, and for those of a kind above; kinds [T] int32; None: all are of kind 0. Source: transformers
    5.24, models/diffusion_gemma.
    """
    found = weighted_sum(parts, weights)
    both = rms_norm(mlp_output, post_norms.mlp, eps) + rms_norm(found, post_norms.experts, eps)
    total = residual + rms_norm(both, post_norms.both, eps)
    total = total * (factors[0] if kinds is None else factors[(kinds > 0).long()][:, None])
    return rms_norm(total, next_norm, eps), total


def weighted_sum(parts: Tensor, weights: Tensor) -> Tensor:
    """The sum [T, dim] of parts [T, K, dim] times weights [T, K] float32, added up in float32 in their order."""
    total = torch.zeros_like(parts[:, 0], dtype=torch.float32)
    for choice, part in enumerate(parts.unbind(1)):
        total += part.float() * weights[:, choice, None]
    return total.to(parts.dtype)


def swiglu(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2 * ff] -> silu(gate) * up [T, ff] (Shazeer, 2020)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def geglu(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2 * ff] -> gelu(gate) * up [T, ff], with the tanh form of GELU (Hendrycks and Gimpel, 2016)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh").mul_(up)


def rope_write_kv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: PagedHeads,
    values: PagedHeads,
    places: Tensor,
    qk_norm: QkNorm = PLAIN,
) -> Tensor:
    """Apply `qk_norm`, rotate queries and keys, write keys and values to their pages, return the queries [T, H, D].

    qkv [T, H + 2 * G, D]; cos, sin [T, R] float32, half-split rotation (Su et al., 2021) in float32 of the first R
    numbers of each head; keys, values [pages, page_size, G, D]; places [T] int64, `page * page_size + offset`, where a
    negative one writes nothing. In `Fp8Heads` the largest number of a position's head becomes FP8's largest.
    """
    kv_heads = keys.shape[2]
    heads = qkv.shape[1] - 2 * kv_heads
    if qk_norm.bias is not None:
        qkv = qkv + qk_norm.bias.view(qkv.shape[1:])
    rotated = qkv[:, : heads + kv_heads]
    if qk_norm.query_norm is not None and qk_norm.key_norm is not None:
        normed = (rotated[:, :heads], qk_norm.query_norm), (rotated[:, heads:], qk_norm.key_norm)
        rotated = torch.cat([rms_norm(part, weight, qk_norm.eps) for part, weight in normed], dim=1)
    own_values = qkv[:, heads + kv_heads :]
    if qk_norm.norms_values:
        own_values = rms_norm(own_values, own_values.new_ones(own_values.shape[-1]), qk_norm.eps)
    rotated = _rotate(rotated.float(), cos[:, None], sin[:, None]).to(qkv.dtype)
    written = (places >= 0).nonzero()[:, 0]
    _write(keys, places[written], rotated[written, heads:])
    _write(values, places[written], own_values[written])
    return rotated[:, :heads]


def _write(to: PagedHeads, places: Tensor, heads: Tensor) -> None:
    """Write heads [n, G, D] to their places [n]."""
    if not isinstance(to, Fp8Heads):
        to.flatten(0, 1)[places] = heads
        return
    numbers, scales = quantize_rows(heads.flatten(0, 1))
    page_size = to.shape[1]
    to.numbers.flatten(0, 1)[places] = numbers.view(heads.shape)
    to.scales[places // page_size, :, places % page_size] = scales.view(heads.shape[:2])


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    rotated, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    low, high = rotated.chunk(2, dim=-1)
    rotated = rotated * cos + torch.cat((-high, low), dim=-1) * sin
    return torch.cat((rotated, rest), dim=-1) if rest.shape[-1] else rotated


def kv_places(table: Tensor, slots: Tensor, positions: Tensor, page_size: int) -> Tensor:
    """Places [T] int64 of keys and values, `page * page_size + offset`; -1 where a position is negative.

    table [slots, pages of a request] int32; slots, positions [T] int64.
    """
    page = table[slots, positions.clamp_min(0) // page_size].long()
    return torch.where(positions < 0, -1, page * page_size + positions % page_size)
