"""The tensors of each family's checkpoints, as data: names, shapes, what is fused, how devices share them.

A *piece* is a tensor of the network here; `NAMES` has its name in the checkpoints of each family.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
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
    return list(_sources(config, TOP, {"head"} if config.tied_head else set()))


def layer_sources(config: ModelConfig, layer: int) -> list[Source]:
    """Sources of a layer, in the order of the rows of its weights."""
    experts = config.experts
    absent = set[str]()
    if not config.qkv_bias:
        absent |= {"q_bias", "k_bias", "v_bias"}
    if not config.qk_norm:
        absent |= {"query_norm", "key_norm"}
    found = list(_sources(config, ATTENTION, absent, layer=layer))
    if experts is None or layer < experts.first_layer:
        return found + list(_sources(config, MLP, absent, layer=layer))
    if not experts.biased:
        absent |= {"router_bias"}
    if not experts.shared_ff_dim:
        absent |= {"shared_gate", "shared_up", "shared_out"}
    found += _sources(config, ROUTER, absent, layer=layer)
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


def _sources(
    config: ModelConfig, pieces: Mapping[str, Piece], absent: Collection[str], **where: int
) -> Iterator[Source]:
    names, sizes = NAMES[config.architecture], _sizes(config)
    for key, piece in pieces.items():
        if key in names and key not in absent:
            parts = tuple(sizes[part] for part in piece.rows)
            columns = () if piece.columns is None else (sizes[piece.columns],)
            yield Source(names[key].format(**where), (sum(parts), *columns), piece.weight, parts, piece.split)


def _sizes(config: ModelConfig) -> dict[str, int]:
    return {
        "vocab": config.vocab_size,
        "dim": config.dim,
        "queries": config.heads * config.head_dim,
        "keys": config.kv_heads * config.head_dim,
        "head": config.head_dim,
        "ff": config.ff_dim,
        "experts": config.experts.count if config.experts else 0,
        "expert_ff": config.experts.ff_dim if config.experts else 0,
        "shared_ff": config.experts.shared_ff_dim if config.experts else 0,
    }
