"""The network as it is trained: plain torch, whole sequences, no cache. The server has its own."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .shapes import THETA, Shape


class Norm(nn.Module):
    """Root mean square, in float32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return normed.to(x.dtype) * self.weight


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv = shape.kv_heads * shape.head_dim
        self.attn_norm, self.ff_norm = Norm(shape.dim, shape.eps), Norm(shape.dim, shape.eps)
        self.q = nn.Linear(shape.dim, shape.dim, bias=shape.bias)
        self.k, self.v = (nn.Linear(shape.dim, kv, bias=shape.bias) for _ in range(2))
        self.attn_out = nn.Linear(shape.dim, shape.dim, bias=False)
        self.gate, self.up = (nn.Linear(shape.dim, shape.ff, bias=False) for _ in range(2))
        self.ff_out = nn.Linear(shape.ff, shape.dim, bias=False)
        if shape.qk_norm:
            self.query_norm, self.key_norm = Norm(shape.head_dim, shape.eps), Norm(shape.head_dim, shape.eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """x [B, T, dim]; cos, sin [B or 1, 1, T, head_dim]; mask [B, 1, T, T] bool or None: all see all."""
        shape = self.shape
        batch, length, dim = x.shape
        normed = self.attn_norm(x)
        # One product for all three, as their weights are small and the input is large.
        weight = torch.cat((self.q.weight, self.k.weight, self.v.weight))
        bias = torch.cat((self.q.bias, self.k.bias, self.v.bias)) if shape.bias else None
        qkv = F.linear(normed, weight, bias).view(batch, length, -1, shape.head_dim).transpose(1, 2)
        q, k, v = torch.split(qkv, [shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        if shape.qk_norm:
            q, k = self.query_norm(q), self.key_norm(k)
        q, k = (rotate(part.float(), cos, sin).to(v.dtype) for part in (q, k))
        k, v = (part.repeat_interleave(shape.heads // shape.kv_heads, dim=1) for part in (k, v))
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.attn_out(seen.transpose(1, 2).reshape(batch, length, dim))
        gate, up = F.linear(self.ff_norm(x), torch.cat((self.gate.weight, self.up.weight))).chunk(2, dim=-1)
        added: Tensor = self.ff_out(F.silu(gate) * up)
        return x + added


class Network(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.dim)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.dim, shape.eps)
        self.head = None if shape.tied else nn.Linear(shape.dim, shape.vocab, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                small = (2 * shape.layers) ** -0.5 if name.endswith(("attn_out.weight", "ff_out.weight")) else 1.0
                nn.init.normal_(weight, std=0.02 * small)

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        """ids [B, T] int64; positions [B or 1, T] -> logits [B, T, V]; with `shift`, of the next position."""
        cos, sin = rotations(positions, self.shape.head_dim)
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, cos, sin, mask)
        return F.linear(self.norm(x), self.embedding.weight if self.head is None else self.head.weight)


def rotations(positions: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """cos, sin [B, 1, T, head_dim] float32 of positions [B, T]."""
    half = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions[:, None, :, None].float() / THETA**half
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin
