"""The network that all families share, over packed rows: a transformer that is causal only in rows that say so.

What differs between families is in their `ModelConfig`, whose readers name the sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..kernels.attention import paged_attention
from ..kernels.common.types import Fp8Matrix, GroupedMatrix, Matrix, QkNorm, Routing
from ..kernels.elementwise import add_rms_norm, embed, rms_norm
from ..kernels.experts import experts_mlp, route
from ..kernels.fused import linear_add_rms_norm, linear_rope_write_kv, linear_swiglu
from ..kernels.importance import importance
from ..kernels.linear import linear
from .checkpoint.config import ModelConfig
from .checkpoint.families import Source, layer_sources, top_sources
from .checkpoint.split import WHOLE, Rank
from .checkpoint.weights import TensorPlace
from .exec.group import Group
from .exec.pack import Batch
from .exec.selection import Predicted, Selected, predicted, select
from .kv_cache import KvPages
from .numerics import Numerics

EXACT = ("router", "router_bias", "expert_scale")  # weights in float32
INT4_GROUPS = 128, 64, 32  # columns that share a scale in int4: the most that divide a matrix that is quantized here


@dataclass(frozen=True, slots=True)
class Mlp:
    gate_up: Matrix
    ff_out: Matrix


@dataclass(frozen=True, slots=True)
class Routed:
    """Experts, of which each token chooses some; a matrix holds the rows of all experts in order."""

    router: Tensor  # float32, as is the bias
    bias: Tensor | None
    gate_up: Matrix
    out: Matrix
    routing: Routing


@dataclass(frozen=True, slots=True)
class Sandwich:
    """The further tensors of a layer of DiffusionGemma: norms [dim] after each of its parts and before its experts;
    scales of the router's input [dim] and of each expert [experts] float32; its factor as encoder and decoder [2]."""

    post_attention_norm: Tensor
    post_mlp_norm: Tensor
    experts_norm: Tensor
    post_experts_norm: Tensor
    post_ff_norm: Tensor
    router_scale: Tensor
    expert_scale: Tensor
    scalars: Tensor


@dataclass(frozen=True, slots=True)
class Conditioning:
    """The MLP, after a norm, by which the last step's logits become a part of a canvas's embeddings."""

    norm: Tensor
    mlp: Mlp


@dataclass(frozen=True, slots=True)
class Block:
    """A layer has an MLP for every token, or experts, or both."""

    attn_norm: Tensor
    qkv: Matrix
    qk_norm: QkNorm
    attn_out: Matrix
    ff_norm: Tensor
    mlp: Mlp | None
    routed: Routed | None
    sandwich: Sandwich | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    embedding: Tensor
    norm: Tensor
    head: Tensor
    blocks: tuple[Block, ...]
    conditioning: Conditioning | None = None


def allocate(
    config: ModelConfig, numerics: Numerics, device: torch.device, rank: Rank = WHOLE
) -> tuple[Weights, dict[str, TensorPlace]]:
    """Memory for the weights, or for a rank's part of them, not yet filled, and where in it each tensor of the
    checkpoint goes. `config` is that of the whole network.

    With `fp8` or `int4` the matrices of the blocks have that form. Those that a checkpoint stores in the same form keep
    its numbers and scales; those that a quantized checkpoint leaves plain stay plain. Embedding and head are never
    quantized, since confidence is read off the head. Routers are float32: a rounding would choose other experts.
    """
    parts = dict[str, TensorPlace]()

    def take(sources: Sequence[Source], inner: bool) -> dict[str, Any]:
        """The weights that these tensors make up, by name: the rows of one weight are those of its tensors in order."""
        weights = dict[str, Matrix]()
        for name, made_of in _grouped(sources).items():
            shapes = [_flat(rank.shape(source)) for source in made_of]
            rows, columns = sum(shape[0] for shape in shapes), shapes[0][1:]
            if name in EXACT:
                weights[name] = torch.empty((rows, *columns), dtype=torch.float32, device=device)
            elif inner and columns:
                weights[name] = _matrix(config, numerics, made_of, (rows, columns[0]), device)
            else:
                weights[name] = torch.empty((rows, *columns), dtype=numerics.dtype, device=device)
            start = 0
            for source, shape in zip(made_of, shapes, strict=True):
                part = partial(rank.part, source) if rank.size > 1 else None
                also = parts.get(source.name)  # where one tensor makes keys and values
                parts[source.name] = TensorPlace(weights[name], start, start + shape[0], part, also)
                start += shape[0]
        return weights

    top = take(top_sources(config), inner=False)
    blocks = tuple(_block(take(layer_sources(config, i), inner=True), config) for i in range(config.layers))
    head = top["head"] if "head" in top else top["embedding"][slice(*rank.span(config.vocab_size))]
    conditioning = None
    if "condition_norm" in top:
        conditioning = Conditioning(top["condition_norm"], Mlp(top["condition_gate_up"], top["condition_out"]))
    return Weights(top["embedding"], top["norm"], head, blocks, conditioning), parts


def _flat(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of several matrices as one, with the rows of all."""
    return (shape[0] * shape[1], shape[2]) if len(shape) == 3 else shape


def _matrix(
    config: ModelConfig, numerics: Numerics, made_of: Sequence[Source], shape: tuple[int, int], device: torch.device
) -> Matrix:
    """Memory for a matrix of a block, or of a rank's part of it. Raises `ValueError` for sizes that products in its
    form cannot take."""
    form = "fp8" if numerics.fp8 else "int4" if numerics.int4 else None
    stored = config.quantization
    if form is None or (stored is not None and not stored.plain.isdisjoint(source.name for source in made_of)):
        return torch.empty(shape, dtype=numerics.dtype, device=device)
    whole = made_of[0].shape[-1]
    if form == "int4" and stored is not None and stored.layout.kept is None:
        raise ValueError(f"int4 cannot keep {stored}")
    if stored is None or stored.layout.kept != form:
        group = None if form == "fp8" else next((size for size in INT4_GROUPS if shape[1] % size == 0), 0)
        if group == 0:
            raise ValueError(f"int4 takes inputs in multiples of {INT4_GROUPS[-1]}, not {shape[1]}")
    else:
        group = whole if stored.layout.group == -1 else stored.layout.group
        if group is not None and shape[1] != whole and shape[1] % group:
            raise ValueError(f"the {whole} inputs of {made_of[0].name} cannot be shared in groups of {group}")
    if group is None:
        return Fp8Matrix.empty(*shape, device)
    return GroupedMatrix.empty(*shape, group, form == "int4", device)


def _grouped(sources: Sequence[Source]) -> dict[str, list[Source]]:
    """Sources by the weight that they make up."""
    groups = dict[str, list[Source]]()
    for source in sources:
        groups.setdefault(source.weight, []).append(source)
    return groups


def _block(weights: dict[str, Any], config: ModelConfig) -> Block:
    return Block(
        attn_norm=weights["attn_norm"],
        qkv=weights["qkv"],
        qk_norm=QkNorm(
            weights.get("qkv_bias"),
            weights.get("query_norm"),
            weights.get("key_norm"),
            config.norm_eps,
            norms_values=config.canvas is not None,
        ),
        attn_out=weights["attn_out"],
        ff_norm=weights["ff_norm"],
        mlp=Mlp(weights["gate_up"], weights["ff_out"]) if "gate_up" in weights else None,
        routed=None
        if config.experts is None or "router" not in weights
        else Routed(
            weights["router"],
            weights.get("router_bias"),
            weights["expert_gate_up"],
            weights["expert_out"],
            config.experts.routing,
        ),
        sandwich=None
        if config.canvas is None
        else Sandwich(**{each.name: weights[each.name] for each in fields(Sandwich)}),
    )


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A step in the last block, whose keys and values are written."""

    queries: Tensor  # [T, H, D]; with a selection, of the tokens that went on
    residual: Tensor  # [T, dim]
    selected: Selected | None = None

    def predicted(self, batch: Batch) -> Predicted | None:
        """The part of the step's batch that is predicted, if a selection leaves out some of it."""
        if batch.predicting is None:
            return None
        if self.selected is None:
            raise ValueError("the batch's body had no selection")
        return predicted(batch, batch.predicting, self.selected)


class Transformer:
    """The network, ready to run: all of it, or one device's part, which computes with the others of its `group`."""

    def __init__(self, config: ModelConfig, numerics: Numerics, weights: Weights, group: Group | None = None) -> None:
        """`config` is that of the part."""
        self.config = config
        self.numerics = numerics
        self.weights = weights
        self.group = group
        self._cos, self._sin = _rotations(config, weights.embedding.device)

    def begin(self, canvases: Tensor, batch: Batch, pages: KvPages) -> Unfinished:
        """All that does not depend on the projected positions: up to the keys and values of the last block.

        canvases [slots, length] int64. Writes keys and values of all T tokens; with a selection, layers after the
        second write only those of the tokens that go on. After those of the last block only projected positions matter,
        so `conclude` computes the rest for them.
        """
        config = self.config
        positions = batch.positions.clamp_min(0)  # of padding, too
        stored = positions if batch.stored is None else batch.stored
        rotated = positions if batch.rope_positions is None else batch.rope_positions
        cos, sin = self._cos[rotated], self._sin[rotated]
        places = pages.places(batch)
        table = pages.table[batch.row_slots]
        blocks, fixed = self.weights.blocks, self.numerics.fixed
        row_starts, attention = batch.row_starts, batch.attention
        selecting, going, gains = batch.selecting, None, None
        residual = embed(canvases, batch.slots, positions, self.weights.embedding)
        x = rms_norm(residual, blocks[0].attn_norm, config.norm_eps)
        for index, block in enumerate(blocks):
            keys, values = pages.keys[index], pages.values[index]
            queries = linear_rope_write_kv(x, block.qkv, cos, sin, keys, values, places, block.qk_norm, fixed)
            if selecting is not None and going is None:
                own = selecting.candidates, selecting.candidate_starts, config.block_size
                found = importance(queries, keys, places, *own)
                if gains is None:
                    gains = -found
                else:  # the second layer's keys are written: from here on some tokens are left out
                    going = select(selecting, gains + found)
                    queries, residual, cos, sin, stored = map(going.of, (queries, residual, cos, sin, stored))
                    places = going.places(places)
                    row_starts, attention = selecting.row_starts, selecting.attention
            if index + 1 == config.layers:
                return Unfinished(queries, residual, None if going is None else going.selected)
            x = paged_attention(
                queries, keys, values, table, row_starts, batch.visible, config.block_size, stored,
                batch.mask_offsets, attention, batch.causal_offsets,
            )  # fmt: skip
            x, residual = self._add_up(x, block.attn_out, residual, block.ff_norm, turn=0)
            x, residual = self._feed_forward(x, residual, block, blocks[index + 1].attn_norm)
        raise ValueError("a network has a block at least")

    def conclude(self, unfinished: Unfinished, batch: Batch, pages: KvPages) -> Tensor:
        """The rest of the last block at the projected positions, and the final norm: hidden states [N, dim]."""
        config, block = self.config, self.weights.blocks[-1]
        queries, residual = unfinished.queries[batch.projected], unfinished.residual[batch.projected]
        if not len(queries):  # the plan needs keys and values alone
            return residual
        table = pages.table[batch.row_slots]
        at = batch.targets - config.logit_shift if batch.projected_stored is None else batch.projected_stored
        x = paged_attention(
            queries, pages.keys[-1], pages.values[-1], table, batch.projected_starts, batch.visible, config.block_size,
            at, batch.mask_offsets, batch.projected_attention, batch.causal_offsets,
        )  # fmt: skip
        x, residual = self._add_up(x, block.attn_out, residual, block.ff_norm, turn=0)
        return self._feed_forward(x, residual, block, self.weights.norm)[0]

    def _feed_forward(self, x: Tensor, residual: Tensor, block: Block, norm: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, dim] through the MLP that every token passes, and the experts that it chooses, is added to the residual
        [T, dim]: (the normed sum, the sum)."""
        mlp, routed, fixed = block.mlp, block.routed, self.numerics.fixed
        if routed is None:
            if mlp is None:
                raise ValueError("a layer has neither an MLP nor experts")
            inner = linear_swiglu(x, mlp.gate_up, fixed)
            return self._add_up(inner, mlp.ff_out, residual, norm, turn=1)
        chosen, weights = route(linear(x.float(), routed.router, fixed), routed.bias, routed.routing)
        found = experts_mlp(x, routed.gate_up, routed.out, chosen, weights, fixed)
        if mlp is not None:
            found = found + linear(linear_swiglu(x, mlp.gate_up, fixed), mlp.ff_out, fixed)
        eps = self.config.norm_eps
        if self.group is not None:
            return self.group.add_rms_norm(found, residual, norm, eps, turn=1)
        return add_rms_norm(found, residual, norm, eps)

    def _add_up(self, x: Tensor, weight: Matrix, residual: Tensor, norm: Tensor, turn: int) -> tuple[Tensor, Tensor]:
        """The product of x [T, in] and weight [dim, in], of which each rank has a part of `in`, is added to the
        residual [T, dim]: (the normed sum, the sum). `turn`: the first or second sum of a layer."""
        fixed, eps = self.numerics.fixed, self.config.norm_eps
        if self.group is None:
            return linear_add_rms_norm(x, weight, residual, norm, eps, fixed)
        return self.group.linear_add_rms_norm(x, weight, residual, norm, eps, fixed, turn)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [N, dim] after the final norm -> logits [N, V], of which each rank computes some columns."""
        found = linear(hidden, self.weights.head, self.numerics.fixed)
        return found if self.group is None else self.group.gather(found, self.config.vocab_size)


def _rotations(config: ModelConfig, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos, sin [max_model_len, rotary_dim] float32."""
    half = torch.arange(0, config.rotary_dim, 2, device=device, dtype=torch.float32) / config.rotary_dim
    angles = torch.outer(torch.arange(config.max_model_len, device=device).float(), 1.0 / config.rope_theta**half)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()
