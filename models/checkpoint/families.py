"""The tensors of each family's checkpoints, as data: names, shapes, what is fused, how devices share them.

A *piece* is a tensor of the network here; `NAMES` has its name in the checkpoints of each family.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from .config import ModelConfig

Split = Literal["rows", "columns", "whole"]


@dataclass(frozen=True, slots=True)
class Piece:
    """`weight`: the weight that has its rows; pieces of one weight follow each other in the order of the table.

    `rows`: names of sizes, one for each part; `columns`: name of a size, None for a vector. `split`: how devices
    share it. Each part of `rows` is split by itself; after a product with split `columns` the results are summed.
    """

    weight: str
    rows: tuple[str, ...]
    columns: str | None = None
    split: Split = "whole"


TOP: Mapping[str, Piece] = {
    "embedding": Piece("embedding", ("vocab",), "dim"),  # each device looks up all tokens: no sum is needed
    "norm": Piece("norm", ("dim",)),
    "head": Piece("head", ("vocab",), "dim", "rows"),
}

ATTENTION: Mapping[str, Piece] = {
    "attn_norm": Piece("attn_norm", ("dim",)),
    "qkv": Piece("qkv", ("queries", "keys", "keys"), "dim", "rows"),
    "q": Piece("qkv", ("queries",), "dim", "rows"),
    "k": Piece("qkv", ("keys",), "dim", "rows"),
    "v": Piece("qkv", ("keys",), "dim", "rows"),
    "q_bias": Piece("qkv_bias", ("queries",), split="rows"),
    "k_bias": Piece("qkv_bias", ("keys",), split="rows"),
    "v_bias": Piece("qkv_bias", ("keys",), split="rows"),
    "query_norm": Piece("query_norm", ("head",)),
    "key_norm": Piece("key_norm", ("head",)),
    "attn_out": Piece("attn_out", ("dim",), "queries", "columns"),
    "ff_norm": Piece("ff_norm", ("dim",)),
}
# DiffusionGemma's besides: norms after each part of a layer, and scalars that differ between encoder and decoder.
SANDWICH: Mapping[str, Piece] = {
    name: Piece(name, (size,))
    for name, size in {
        "post_attention_norm": "dim",
        "post_mlp_norm": "dim",
        "experts_norm": "dim",
        "post_experts_norm": "dim",
        "post_ff_norm": "dim",
        "router_scale": "dim",
        "expert_scale": "experts",
    }.items()
} | {"encoder_scalar": Piece("scalars", ("one",)), "decoder_scalar": Piece("scalars", ("one",))}
CONDITIONING: Mapping[str, Piece] = {
    "condition_norm": Piece("condition_norm", ("dim",)),
    "condition_gate": Piece("condition_gate_up", ("ff",), "dim"),
    "condition_up": Piece("condition_gate_up", ("ff",), "dim"),
    "condition_out": Piece("condition_out", ("dim",), "ff"),
}
MLP: Mapping[str, Piece] = {
    "gate": Piece("gate_up", ("ff",), "dim", "rows"),
    "up": Piece("gate_up", ("ff",), "dim", "rows"),
    "ff_out": Piece("ff_out", ("dim",), "ff", "columns"),
}
# A layer with experts: the pieces that exist once, then those of each expert. A shared MLP replaces the dense one.
ROUTER: Mapping[str, Piece] = {
    "router": Piece("router", ("experts",), "dim"),
    "router_bias": Piece("router_bias", ("experts",)),
    "shared_gate": Piece("gate_up", ("shared_ff",), "dim", "rows"),
    "shared_up": Piece("gate_up", ("shared_ff",), "dim", "rows"),
    "shared_out": Piece("ff_out", ("dim",), "shared_ff", "columns"),
}
EXPERT: Mapping[str, Piece] = {
    "expert_gate": Piece("expert_gate_up", ("expert_ff",), "dim", "rows"),
    "expert_up": Piece("expert_gate_up", ("expert_ff",), "dim", "rows"),
    "expert_out": Piece("expert_out", ("dim",), "expert_ff", "columns"),
}

# All experts of a layer in one tensor, whose first size is their number.
EXPERTS: Mapping[str, Piece] = {
    "experts_gate_up": Piece("expert_gate_up", ("experts", "expert_gate_up"), "dim"),
    "experts_out": Piece("expert_out", ("experts", "dim"), "expert_ff"),
}
OF_EXPERT = re.compile(r"\.experts\.\d+\.")  # in the name of a tensor that only one expert has

_LLADA = {
    "embedding": "model.transformer.wte.weight",
    "norm": "model.transformer.ln_f.weight",
    "head": "model.transformer.ff_out.weight",
    "attn_norm": "model.transformer.blocks.{layer}.attn_norm.weight",
    "q": "model.transformer.blocks.{layer}.q_proj.weight",
    "k": "model.transformer.blocks.{layer}.k_proj.weight",
    "v": "model.transformer.blocks.{layer}.v_proj.weight",
    "attn_out": "model.transformer.blocks.{layer}.attn_out.weight",
    "ff_norm": "model.transformer.blocks.{layer}.ff_norm.weight",
    "gate": "model.transformer.blocks.{layer}.ff_proj.weight",
    "up": "model.transformer.blocks.{layer}.up_proj.weight",
    "ff_out": "model.transformer.blocks.{layer}.ff_out.weight",
}

_QWEN = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "attn_norm": "model.layers.{layer}.input_layernorm.weight",
    "q": "model.layers.{layer}.self_attn.q_proj.weight",
    "k": "model.layers.{layer}.self_attn.k_proj.weight",
    "v": "model.layers.{layer}.self_attn.v_proj.weight",
    "q_bias": "model.layers.{layer}.self_attn.q_proj.bias",
    "k_bias": "model.layers.{layer}.self_attn.k_proj.bias",
    "v_bias": "model.layers.{layer}.self_attn.v_proj.bias",
    "query_norm": "model.layers.{layer}.self_attn.q_norm.weight",
    "key_norm": "model.layers.{layer}.self_attn.k_norm.weight",
    "attn_out": "model.layers.{layer}.self_attn.o_proj.weight",
    "ff_norm": "model.layers.{layer}.post_attention_layernorm.weight",
    "gate": "model.layers.{layer}.mlp.gate_proj.weight",
    "up": "model.layers.{layer}.mlp.up_proj.weight",
    "ff_out": "model.layers.{layer}.mlp.down_proj.weight",
}

_QWEN_MOE = _QWEN | {
    "router": "model.layers.{layer}.mlp.gate.weight",
    "expert_gate": "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
    "expert_up": "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
    "expert_out": "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight",
}

_LLADA2 = {
    "embedding": "model.word_embeddings.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "attn_norm": "model.layers.{layer}.input_layernorm.weight",
    "qkv": "model.layers.{layer}.attention.query_key_value.weight",
    "query_norm": "model.layers.{layer}.attention.query_layernorm.weight",
    "key_norm": "model.layers.{layer}.attention.key_layernorm.weight",
    "attn_out": "model.layers.{layer}.attention.dense.weight",
    "ff_norm": "model.layers.{layer}.post_attention_layernorm.weight",
    "gate": "model.layers.{layer}.mlp.gate_proj.weight",
    "up": "model.layers.{layer}.mlp.up_proj.weight",
    "ff_out": "model.layers.{layer}.mlp.down_proj.weight",
    "router": "model.layers.{layer}.mlp.gate.weight",
    "router_bias": "model.layers.{layer}.mlp.gate.expert_bias",
    "shared_gate": "model.layers.{layer}.mlp.shared_experts.gate_proj.weight",
    "shared_up": "model.layers.{layer}.mlp.shared_experts.up_proj.weight",
    "shared_out": "model.layers.{layer}.mlp.shared_experts.down_proj.weight",
    "expert_gate": "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
    "expert_up": "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
    "expert_out": "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight",
}

_GEMMA_LAYER = "model.decoder.layers.{layer}."
_GEMMA = {
    "embedding": "model.decoder.embed_tokens.weight",
    "norm": "model.decoder.norm.weight",
    "head": "lm_head.weight",
    "condition_norm": "model.decoder.self_conditioning.pre_norm.weight",
    "condition_gate": "model.decoder.self_conditioning.gate_proj.weight",
    "condition_up": "model.decoder.self_conditioning.up_proj.weight",
    "condition_out": "model.decoder.self_conditioning.down_proj.weight",
    "attn_norm": _GEMMA_LAYER + "input_layernorm.weight",
    "q": _GEMMA_LAYER + "self_attn.q_proj.weight",
    "k": _GEMMA_LAYER + "self_attn.k_proj.weight",
    "v": _GEMMA_LAYER + "self_attn.v_proj.weight",
    "query_norm": _GEMMA_LAYER + "self_attn.q_norm.weight",
    "key_norm": _GEMMA_LAYER + "self_attn.k_norm.weight",
    "attn_out": _GEMMA_LAYER + "self_attn.o_proj.weight",
    "ff_norm": _GEMMA_LAYER + "pre_feedforward_layernorm.weight",
    "gate": _GEMMA_LAYER + "mlp.gate_proj.weight",
    "up": _GEMMA_LAYER + "mlp.up_proj.weight",
    "ff_out": _GEMMA_LAYER + "mlp.down_proj.weight",
    "router": _GEMMA_LAYER + "router.proj.weight",
    "router_scale": _GEMMA_LAYER + "router.scale",
    "expert_scale": _GEMMA_LAYER + "router.per_expert_scale",
    "experts_gate_up": _GEMMA_LAYER + "experts.gate_up_proj",
    "experts_out": _GEMMA_LAYER + "experts.down_proj",
    "expert_gate": _GEMMA_LAYER + "experts.{expert}.gate_proj.weight",  # of quantized checkpoints, as the next two
    "expert_up": _GEMMA_LAYER + "experts.{expert}.up_proj.weight",
    "expert_out": _GEMMA_LAYER + "experts.{expert}.down_proj.weight",
    "post_attention_norm": _GEMMA_LAYER + "post_attention_layernorm.weight",
    "post_mlp_norm": _GEMMA_LAYER + "post_feedforward_layernorm_1.weight",
    "experts_norm": _GEMMA_LAYER + "pre_feedforward_layernorm_2.weight",
    "post_experts_norm": _GEMMA_LAYER + "post_feedforward_layernorm_2.weight",
    "post_ff_norm": _GEMMA_LAYER + "post_feedforward_layernorm.weight",
    "encoder_scalar": "model.encoder.language_model.layers.{layer}.layer_scalar",
    "decoder_scalar": _GEMMA_LAYER + "layer_scalar",
}

NAMES: Mapping[str, Mapping[str, str]] = {
    "LLaDAModelLM": _LLADA,
    "DreamModel": _QWEN,
    "Fast_dLLM_QwenForCausalLM": _QWEN,
    "SDARForCausalLM": _QWEN,
    "SDARMoeForCausalLM": _QWEN_MOE,
    "LLaDAMoEModelLM": _QWEN_MOE,
    "StableDiffcoderForCausalLM": _QWEN,
    "LLaDA2MoeModelLM": _LLADA2,
    "WeDLMForCausalLM": _QWEN,
    "Qwen2ForCausalLM": _QWEN,
    "Qwen3ForCausalLM": _QWEN,
    "Qwen3MoeForCausalLM": _QWEN_MOE,
    "DiffusionGemmaForBlockDiffusion": _GEMMA,
}

# Prefixes under which a checkpoint may store the same tensors again, or instead.
TWINS: Mapping[str, tuple[str, str]] = {
    "DiffusionGemmaForBlockDiffusion": ("model.encoder.language_model.", "model.decoder."),
}
# Parts of a checkpoint that are not loaded: images.
LEFT_OUT: Mapping[str, tuple[str, ...]] = {
    "DiffusionGemmaForBlockDiffusion": ("model.encoder.vision_tower.", "model.encoder.embed_vision."),
}


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor of a checkpoint. `parts`: numbers of its rows that are split each by itself."""

    name: str
    shape: tuple[int, ...]
    weight: str
    parts: tuple[int, ...]
    split: Split


def top_sources(config: ModelConfig) -> list[Source]:
    """Sources of the tensors that exist once."""
    return list(_sources(config, {**TOP, **CONDITIONING}, {"head"} if config.tied_head else set()))


def layer_sources(config: ModelConfig, layer: int) -> list[Source]:
    """Sources of a layer, in the order of the rows of its weights."""
    experts = config.experts
    absent = set[str]()
    if not config.qkv_bias:
        absent |= {"q_bias", "k_bias", "v_bias"}
    if not config.qk_norm:
        absent |= {"query_norm", "key_norm"}
    found = list(_sources(config, ATTENTION, absent | ({"v"} if config.heads_of(layer).shared else set()), layer=layer))
    if config.heads_of(layer).shared:  # the rows of keys once more, for values
        after = [source.weight for source in found].index("qkv") + 2
        found.insert(after, found[after - 1])
    if experts is None or layer < experts.first_layer:
        return found + list(_sources(config, MLP, absent, layer=layer))
    if not experts.biased:
        absent |= {"router_bias"}
    if not experts.shared_ff_dim:
        absent |= {"shared_gate", "shared_up", "shared_out"}
    if config.canvas is not None:  # its experts stand beside an MLP
        found += _sources(config, {**MLP, **SANDWICH}, absent, layer=layer)
    found += _sources(config, ROUTER, absent, layer=layer)
    if config.canvas is not None and not experts.apart:
        return found + list(_sources(config, EXPERTS, absent, layer=layer))
    for expert in range(experts.count):
        found += _sources(config, EXPERT, absent, layer=layer, expert=expert)
    return found


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the checkpoint, by name."""
    layers = (source for layer in range(config.layers) for source in layer_sources(config, layer))
    return {source.name: source.shape for source in (*top_sources(config), *layers)}


def tied_copy(config: ModelConfig) -> tuple[str, str] | None:
    """The names of a head and of the embedding that replaces it: some checkpoints store both."""
    names = NAMES[config.architecture]
    return (names["head"], names["embedding"]) if config.tied_head else None


def as_in_files(config: ModelConfig, stored: Iterable[str]) -> ModelConfig:
    """The configuration of a checkpoint with tensors of these names: they say whether experts are `apart`."""
    if config.canvas is None or config.experts is None:
        return config
    apart = any(OF_EXPERT.search(name) for name in stored)
    return replace(config, experts=replace(config.experts, apart=apart))


def twins_of(config: ModelConfig, stored: Collection[str], expected: Collection[str]) -> dict[str, str]:
    """The names of tensors that are `stored` under the family's other prefix, by the names that they have under its
    own. Some are `expected` under both, and stand for themselves."""
    twin, own = TWINS.get(config.architecture, ("", ""))
    named = (name for name in stored if twin and name.startswith(twin) and name not in expected)
    return {own + name.removeprefix(twin): name for name in named}


def left_out(config: ModelConfig, name: str) -> bool:
    """True for a tensor of a part that is not loaded."""
    return name.startswith(LEFT_OUT.get(config.architecture, ()))


def _sources(
    config: ModelConfig, pieces: Mapping[str, Piece], absent: Collection[str], **where: int
) -> Iterator[Source]:
    names, sizes = NAMES[config.architecture], _sizes(config, where.get("layer", 0))
    for key, piece in pieces.items():
        if key in names and key not in absent:
            parts = tuple(sizes[part] for part in piece.rows)
            columns = () if piece.columns is None else (sizes[piece.columns],)
            rows = parts if key in EXPERTS else (sum(parts),)
            yield Source(names[key].format(**where), (*rows, *columns), piece.weight, parts, piece.split)


def _sizes(config: ModelConfig, layer: int) -> dict[str, int]:
    heads = config.heads_of(layer)
    return {
        "one": 1,
        "vocab": config.vocab_size,
        "dim": config.dim,
        "queries": config.heads * heads.head_dim,
        "keys": heads.kv_heads * heads.head_dim,
        "head": heads.head_dim,
        "ff": config.ff_dim,
        "experts": config.experts.count if config.experts else 0,
        "expert_ff": config.experts.ff_dim if config.experts else 0,
        "expert_gate_up": 2 * config.experts.ff_dim if config.experts else 0,
        "shared_ff": config.experts.shared_ff_dim if config.experts else 0,
    }
