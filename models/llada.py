"""LLaDA's network over packed rows: a LLaMA-shaped transformer without a causal mask.

Source: Nie et al., arXiv 2502.09992; tensor names as in its published checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..kernels import ops
from ..kernels.linear import Fp8Matrix, Matrix
from ..kernels.tiles import AttentionPlan
from .config import ModelConfig
from .kv_pages import KvPages
from .numerics import Numerics
from .pack import Batch
from .weights import Part

PREFIX = "model.transformer."


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the checkpoint, by name."""
    dim, kv_dim, ff = config.dim, config.kv_heads * config.head_dim, config.ff_dim
    block = {
        "attn_norm": (dim,),
        "ff_norm": (dim,),
        "q_proj": (dim, dim),
        "k_proj": (kv_dim, dim),
        "v_proj": (kv_dim, dim),
        "attn_out": (dim, dim),
        "ff_proj": (ff, dim),
        "up_proj": (ff, dim),
        "ff_out": (dim, ff),
    }
    names = {f"blocks.{i}.{name}": shape for i in range(config.layers) for name, shape in block.items()}
    names |= {"wte": (config.vocab_size, dim), "ln_f": (dim,)}
    if not config.tied_head:
        names["ff_out"] = (config.vocab_size, dim)
    return {f"{PREFIX}{name}.weight": shape for name, shape in names.items()}


# What each weight of a block is made of: projections that read the same input are one matrix.
FUSED = {
    "attn_norm": ("attn_norm",),
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "attn_out": ("attn_out",),
    "ff_norm": ("ff_norm",),
    "gate_up": ("ff_proj", "up_proj"),
    "ff_out": ("ff_out",),
}


@dataclass(frozen=True, slots=True)
class Block:
    attn_norm: Tensor
    qkv: Matrix
    attn_out: Matrix
    ff_norm: Tensor
    gate_up: Matrix
    ff_out: Matrix


@dataclass(frozen=True, slots=True)
class Weights:
    embedding: Tensor
    norm: Tensor
    head: Tensor
    blocks: tuple[Block, ...]


def allocate(config: ModelConfig, numerics: Numerics, device: torch.device) -> tuple[Weights, dict[str, Part]]:
    """Memory for the weights, not yet filled, and where in it each tensor of the checkpoint goes.

    In FP8 are the matrices of the blocks. Embedding and head stay as they are: confidence is read off the head.
    """
    shapes, parts = tensor_shapes(config), dict[str, Part]()

    def take(*names: str, quantized: bool = False) -> Any:
        full = [f"{PREFIX}{name}.weight" for name in names]
        sizes = [shapes[name] for name in full]
        rows = sum(size[0] for size in sizes)
        weight: Matrix
        if quantized and len(sizes[0]) == 2:
            weight = Fp8Matrix.empty(rows, sizes[0][1], device)
        else:
            weight = torch.empty((rows, *sizes[0][1:]), dtype=numerics.dtype, device=device)
        start = 0
        for name, size in zip(full, sizes, strict=True):
            parts[name] = Part(weight, start, start + size[0])
            start += size[0]
        return weight

    embedding = take("wte")
    blocks = tuple(
        Block(
            **{
                field: take(*(f"blocks.{i}.{name}" for name in names), quantized=numerics.fp8)
                for field, names in FUSED.items()
            }
        )
        for i in range(config.layers)
    )
    head = embedding if config.tied_head else take("ff_out")
    return Weights(embedding, take("ln_f"), head, blocks), parts


class Llada:
    """The network, ready to run."""

    def __init__(self, config: ModelConfig, numerics: Numerics, weights: Weights) -> None:
        self.config = config
        self.numerics = numerics
        self.weights = weights
        self._cos, self._sin = _rotations(config, weights.embedding.device)

    def hidden(self, canvases: Tensor, batch: Batch, pages: KvPages) -> Tensor:
        """canvases [slots, length] int64 -> hidden states [N, dim] of the projected positions, before the final norm.

        Writes keys and values of all T. Behind those of the last block only projected positions matter, so the rest
        of that block is computed for them alone.
        """
        config = self.config
        positions = batch.positions.clamp_min(0)  # of padding, too
        cos, sin = self._cos[positions], self._sin[positions]
        places = pages.places(batch)
        table = pages.table[batch.row_slots]
        blocks, fixed = self.weights.blocks, self.numerics.fixed
        residual = ops.embed(canvases, batch.slots, positions, self.weights.embedding)
        whole, last = _plans(batch)
        x = ops.rms_norm(residual, blocks[0].attn_norm, config.norm_eps)
        for index, block in enumerate(blocks):
            qkv = ops.linear(x, block.qkv, fixed).view(len(positions), -1, config.head_dim)
            keys, values = pages.keys[index], pages.values[index]
            queries = ops.rope_write_kv(qkv, cos, sin, keys, values, places)
            row_starts, plan = batch.row_starts, whole
            if index + 1 == config.layers:
                queries, residual = queries[batch.projected], residual[batch.projected]
                row_starts, plan = batch.projected_starts, last
                if not len(queries):  # keys and values were all that was asked for
                    return residual
            x = ops.paged_attention(queries, keys, values, table, row_starts, batch.visible, plan=plan)
            x, residual = ops.add_rms_norm(
                ops.linear(x, block.attn_out, fixed), residual, block.ff_norm, config.norm_eps
            )
            x = ops.linear(ops.swiglu(ops.linear(x, block.gate_up, fixed)), block.ff_out, fixed)
            if index + 1 < config.layers:
                x, residual = ops.add_rms_norm(x, residual, blocks[index + 1].attn_norm, config.norm_eps)
        return residual + x

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [N, dim] -> logits [N, V]."""
        normed = ops.rms_norm(hidden, self.weights.norm, self.config.norm_eps)
        return ops.linear(normed, self.weights.head, self.numerics.fixed)


def _plans(batch: Batch) -> tuple[AttentionPlan | None, AttentionPlan | None]:
    """How attention is launched over all tokens, and over the projected ones."""
    shape = batch.shape
    if shape is None or batch.tiles is None or batch.projected_tiles is None:
        return None, None
    return (
        AttentionPlan(shape.tiling.config, batch.tiles),
        AttentionPlan(shape.projected_tiling.config, batch.projected_tiles),
    )


def _rotations(config: ModelConfig, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos, sin [max_model_len, head_dim] float32."""
    half = torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float32) / config.head_dim
    angles = torch.outer(torch.arange(config.max_model_len, device=device).float(), 1.0 / config.rope_theta**half)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()
