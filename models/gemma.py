"""DiffusionGemma's network: rows of text are encoded by a causal transformer, whole canvases decoded by the same one.

Source: transformers 5.24, models/diffusion_gemma. A decoder's row sees the whole canvas and the text before it, has a
factor of its own in each layer, and embeddings that the last step's logits condition. Its keys and values lie in the
pages of its own positions until the finished canvas is encoded there.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..kernels.attention import paged_attention
from ..kernels.attention.tiles import AttentionPlan, AttentionWindow, fitting
from ..kernels.common.types import FeedForwardNorms
from ..kernels.elementwise import add_attention, add_feed_forward, embed, geglu, rms_norm
from ..kernels.experts import experts_parts, route
from ..kernels.fused import linear_rope_write_kv
from ..kernels.linear import linear
from ..kernels.logits import soft_cap, temper
from .checkpoint.canvas import CanvasNetwork, Heads
from .checkpoint.config import ModelConfig
from .exec.group import Group
from .exec.pack import CONDITIONED, TEXT, Batch
from .kv_cache import KvPages
from .network import Block, Mlp, Sandwich, Transformer, Unfinished, Weights
from .numerics import Numerics

SOFT_ROWS = 512  # positions whose probabilities are in memory at once


class Gemma(Transformer):
    """The network, ready to run. `soft` [slots + 1, canvas length, dim] are the embeddings that the last step's logits
    expect at each position of a canvas, position p at p % canvas length; the last slot is that of padding."""

    def __init__(self, config: ModelConfig, numerics: Numerics, weights: Weights, group: Group | None = None) -> None:
        super().__init__(config, numerics, weights, group)
        device, dtype = weights.embedding.device, numerics.dtype
        self._canvas = _canvas_of(config)
        self._angles = {heads: _rotations(heads, config.max_model_len, device) for heads in self._kinds()}
        self._ones = torch.ones(config.dim, dtype=dtype, device=device)
        self._embedding_scale = torch.tensor(config.dim**0.5).to(dtype).item()  # rounded, as it was trained
        # On a GPU the library reads the embedding as it is; sums in a fixed order need rows that are contiguous.
        contiguous = numerics.fixed or device.type == "cpu"
        self._transposed = weights.embedding.T.contiguous() if contiguous else None
        self._soft = torch.zeros((0, self._canvas.canvas_length, config.dim), dtype=dtype, device=device)

    def reserve(self, slots: int) -> None:
        """Take memory for the conditions of so many canvases."""
        self._soft = self._soft.new_zeros((slots + 1, *self._soft.shape[1:]))

    def begin(self, canvases: Tensor, batch: Batch, pages: KvPages) -> Unfinished:
        config = self.config
        positions = batch.positions.clamp_min(0)  # of padding, too
        residual = self._embedded(canvases, batch, positions)
        angles = {heads: (cos[positions], sin[positions]) for heads, (cos, sin) in self._angles.items()}
        places, table = pages.places(batch), pages.table[batch.row_slots]
        kinds = None if batch.denoised is None else batch.denoised.kinds
        blocks = self.weights.blocks
        x = rms_norm(residual, blocks[0].attn_norm, config.norm_eps)
        for index, block in enumerate(blocks):
            heads, keys, values = config.heads_of(index), pages.keys[index], pages.values[index]
            queries = linear_rope_write_kv(
                x, block.qkv, *angles[heads], keys, values, places, block.qk_norm, self.numerics.fixed
            )
            if index + 1 == config.layers:
                return Unfinished(queries, residual)
            x = paged_attention(
                queries, keys, values, table, batch.row_starts, batch.visible, 1, positions, None,
                self._plan(batch.attention, heads), window=self._window(batch, heads), scale=1.0,
            )  # fmt: skip
            x, residual = self._rest_of_layer(x, residual, block, kinds, blocks[index + 1].attn_norm)
        raise ValueError("a network has a block at least")

    def conclude(self, unfinished: Unfinished, batch: Batch, pages: KvPages) -> Tensor:
        block, heads = self.weights.blocks[-1], self.config.heads_of(self.config.layers - 1)
        queries, residual = unfinished.queries[batch.projected], unfinished.residual[batch.projected]
        if not len(queries):  # the plan needs keys and values alone
            return residual
        table = pages.table[batch.row_slots]
        kinds = None if batch.denoised is None else (batch.denoised.temperatures > 0).int()
        x = paged_attention(
            queries, pages.keys[-1], pages.values[-1], table, batch.projected_starts, batch.visible, 1, batch.targets,
            None, self._plan(batch.projected_attention, heads), window=self._window(batch, heads), scale=1.0,
        )  # fmt: skip
        return self._rest_of_layer(x, residual, block, kinds, self.weights.norm)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        return soft_cap(super().logits(hidden), self._canvas.softcap)

    def condition(self, logits: Tensor, batch: Batch) -> Tensor:
        """Divide the logits [N, V] of canvases by their temperatures, in place, and keep the embeddings that they
        expect for the next step. Returns the likeliest tokens [N] int64."""
        if batch.denoised is None:
            raise ValueError("no row of the batch is a canvas")
        temperatures = batch.denoised.temperatures
        slots = torch.where(temperatures > 0, batch.target_slots, len(self._soft) - 1)
        places = batch.targets.clamp_min(0) % self._canvas.canvas_length
        embedding = self.weights.embedding
        likeliest: list[Tensor] = []
        for start in range(0, len(logits), SOFT_ROWS):
            part = slice(start, start + SOFT_ROWS)
            # The logits condition in the embeddings' type, as they do in training.
            shares, tokens = temper(logits[part], temperatures[part], embedding.dtype)
            transposed = self._transposed
            expected = shares @ embedding if transposed is None else linear(shares, transposed, self.numerics.fixed)
            self._soft[slots[part], places[part]] = expected * self._embedding_scale
            likeliest.append(tokens)
        return likeliest[0] if len(likeliest) == 1 else torch.cat(likeliest)

    def _embedded(self, canvases: Tensor, batch: Batch, positions: Tensor) -> Tensor:
        """Embeddings [T, dim] of all tokens; those of canvases are conditioned and normed."""
        config, conditioning, denoised = self.config, self.weights.conditioning, batch.denoised
        plain = embed(canvases, batch.slots, positions, self.weights.embedding) * self._embedding_scale
        if denoised is None or conditioning is None:
            return plain
        soft = self._soft[batch.slots, positions % self._canvas.canvas_length]
        soft = torch.where((denoised.kinds == CONDITIONED)[:, None], soft, 0.0)
        signal = self._mlp(rms_norm(soft, conditioning.norm, config.norm_eps), conditioning.mlp)
        conditioned = rms_norm(plain + signal, self._ones, config.norm_eps)
        return torch.where((denoised.kinds != TEXT)[:, None], conditioned, plain)

    def _rest_of_layer(
        self, x: Tensor, residual: Tensor, block: Block, kinds: Tensor | None, next_norm: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The layer's output [T, dim], normed by `next_norm` [dim] and as it is, from the output x [T, H * D] of its
        heads and the residual [T, dim]. `kinds` [T] int32: above 0 for tokens of canvases; None: there are none."""
        more, routed, eps, fixed = _sandwich(block), block.routed, self.config.norm_eps, self.numerics.fixed
        if routed is None or block.mlp is None:
            raise ValueError("a layer lacks its MLP or its experts")
        # `mlp` is an input first, then an output: that frees the memory of an input that was read.
        mlp, experts, router_input, residual = add_attention(
            linear(x, block.attn_out, fixed), residual, more.post_attention_norm, block.ff_norm, more.experts_norm,
            more.router_scale, eps,
        )  # fmt: skip
        chosen, weights = route(linear(router_input, routed.router, fixed), None, routed.routing, more.expert_scale)
        mlp = self._mlp(mlp, block.mlp)
        parts = experts_parts(experts, routed.gate_up, routed.out, chosen, fixed, gelu=True)
        post_norms = FeedForwardNorms(more.post_mlp_norm, more.post_experts_norm, more.post_ff_norm)
        return add_feed_forward(mlp, parts, weights, residual, post_norms, more.scalars, kinds, next_norm, eps)

    def _mlp(self, x: Tensor, mlp: Mlp) -> Tensor:
        fixed = self.numerics.fixed
        return linear(geglu(linear(x, mlp.gate_up, fixed)), mlp.ff_out, fixed)

    def _kinds(self) -> set[Heads]:
        return {self.config.heads_of(layer) for layer in range(self.config.layers)}

    def _window(self, batch: Batch, heads: Heads) -> AttentionWindow:
        return AttentionWindow(heads.window, None if batch.denoised is None else batch.denoised.canvas_starts)

    def _plan(self, plan: AttentionPlan | None, heads: Heads) -> AttentionPlan | None:
        """The plan for other heads, with the same tiles of queries as for the network's own. A key head among fewer has
        more query heads, in so many parts that a part has as many as an own key head. Larger heads need more warps, for
        their registers, and leave room for fewer stages, and in float32 for fewer keys a turn."""
        if plan is None or (heads.kv_heads, heads.head_dim) == (self.config.kv_heads, self.config.head_dim):
            return plan
        own = plan.config
        larger = max(1, heads.head_dim // self.config.head_dim)
        warps, stages = min(16, own.warps * larger), max(1, own.stages // larger)
        config = replace(own, parts=self.config.kv_heads // heads.kv_heads, warps=warps, stages=stages)
        config = fitting(config, heads.head_dim, self.numerics.dtype.itemsize)
        return replace(plan, config=config)


def network_of(config: ModelConfig, numerics: Numerics, weights: Weights, group: Group | None = None) -> Transformer:
    """The network of a configuration, ready to run."""
    kind = Transformer if config.canvas is None else Gemma
    return kind(config, numerics, weights, group)


def _canvas_of(config: ModelConfig) -> CanvasNetwork:
    if config.canvas is None:
        raise ValueError(f"{config.architecture} has no canvases of random tokens")
    return config.canvas


def _sandwich(block: Block) -> Sandwich:
    if block.sandwich is None:
        raise ValueError("a layer lacks its norms")
    return block.sandwich


def _rotations(heads: Heads, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos, sin [length, head_dim] float32. Pairs that do not turn have the angle 0."""
    half = heads.head_dim // 2
    exponents = torch.arange(half, device=device, dtype=torch.float32) * 2 / heads.head_dim
    turns = torch.where(torch.arange(half, device=device) < heads.rotated, 1.0 / heads.rope_theta**exponents, 0.0)
    angles = torch.outer(torch.arange(length, device=device).float(), turns)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()
