"""LLaDA's network over packed rows: a LLaMA-shaped transformer without a causal mask.

Source: Nie et al., arXiv 2502.09992; tensor names as in its published checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels import ops
from ..kernels.tiles import AttentionPlan
from .config import ModelConfig
from .kv_pages import KvPages
from .pack import Batch

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


@dataclass(frozen=True, slots=True)
class Block:
    attn_norm: Tensor
    qkv: Tensor
    attn_out: Tensor
    ff_norm: Tensor
    gate_up: Tensor
    ff_out: Tensor


class Llada:
    """Weights ready to run: projections that read the same input are fused into one matrix."""

    def __init__(self, config: ModelConfig, weights: dict[str, Tensor]) -> None:
        """`weights` as `tensor_shapes` names them; they are taken out of the dict as they are used."""

        def take(name: str) -> Tensor:
            return weights.pop(f"{PREFIX}{name}.weight")

        self.config = config
        self.embedding = take("wte")
        self.norm = take("ln_f")
        self.head = self.embedding if config.tied_head else take("ff_out")
        self.blocks = [
            Block(
                attn_norm=take(f"blocks.{i}.attn_norm"),
                qkv=torch.cat([take(f"blocks.{i}.{part}_proj") for part in "qkv"]),
                attn_out=take(f"blocks.{i}.attn_out"),
                ff_norm=take(f"blocks.{i}.ff_norm"),
                gate_up=torch.cat([take(f"blocks.{i}.{part}_proj") for part in ("ff", "up")]),
                ff_out=take(f"blocks.{i}.ff_out"),
            )
            for i in range(config.layers)
        ]
        self._cos, self._sin = _rotations(config, self.embedding.device)

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
        residual = ops.embed(canvases, batch.slots, positions, self.embedding)
        whole, last = _plans(batch)
        x = ops.rms_norm(residual, self.blocks[0].attn_norm, config.norm_eps)
        for index, block in enumerate(self.blocks):
            qkv = ops.linear(x, block.qkv).view(len(positions), -1, config.head_dim)
            keys, values = pages.keys[index], pages.values[index]
            queries = ops.rope_write_kv(qkv, cos, sin, keys, values, places)
            row_starts, plan = batch.row_starts, whole
            if index + 1 == config.layers:
                queries, residual = queries[batch.projected], residual[batch.projected]
                row_starts, plan = batch.projected_starts, last
            x = ops.paged_attention(queries, keys, values, table, row_starts, batch.visible, plan=plan)
            x, residual = ops.add_rms_norm(ops.linear(x, block.attn_out), residual, block.ff_norm, config.norm_eps)
            x = ops.linear(ops.swiglu(ops.linear(x, block.gate_up)), block.ff_out)
            if index + 1 < config.layers:
                x, residual = ops.add_rms_norm(x, residual, self.blocks[index + 1].attn_norm, config.norm_eps)
        return residual + x

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [N, dim] -> logits [N, V]."""
        return ops.linear(ops.rms_norm(hidden, self.norm, self.config.norm_eps), self.head)


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
