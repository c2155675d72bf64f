"""Small checkpoints of every architecture with random weights, in the words of the published ones, for tests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from asynclane.models.checkpoint.config import read_config
from asynclane.models.checkpoint.families import tensor_shapes
from asynclane.models.checkpoint.registry import EMBEDDED
from asynclane.models.checkpoint.weights import SINGLE

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that a test may choose; the vocabulary is that of the embedded models' tokenizer."""

    dim: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ff_dim: int = 96
    vocab_size: int = 1408
    max_model_len: int = 512
    mask_id: int = 5
    tied: bool = False
    block: int = 4
    experts: int = 8
    chosen: int = 3
    expert_ff_dim: int = 32
    groups: int = 4
    live_groups: int = 2


def write_checkpoint(directory: Path, architecture: str, *, seed: int = 0, **sizes: Any) -> Path:
    """Configuration, random float32 weights and tiny-llada's tokenizer; `sizes` are those of `write_config`. Returns
    the directory."""
    write_config(directory, architecture, **sizes)
    for name in TOKENIZER:
        shutil.copy(EMBEDDED / "tiny-llada" / name, directory / name)
    generator = torch.Generator().manual_seed(seed)
    shapes = tensor_shapes(read_config(directory))
    save_file({name: _random(name, shape, generator) for name, shape in shapes.items()}, directory / SINGLE)
    return directory


def write_config(directory: Path, architecture: str, **sizes: Any) -> None:
    """config.json; `sizes` are those of `Sizes`, and whatever else is given stands in it as it is."""
    known = {name: sizes.pop(name) for name in list(sizes) if name in Sizes.__dataclass_fields__}
    raw = {"architectures": [architecture], "eos_token_id": 1, "pad_token_id": 1, "mask_token_id": 5}
    raw |= CONFIGS[architecture](Sizes(**known)) | sizes
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw, indent=1))


def write_sentencepiece_tokenizer(directory: Path, decoder: Mapping[str, Any]) -> None:
    """A tokenizer as Llama's, in place of a checkpoint's own: words with the space before them, and tokens of bytes."""
    specials = ["<unk>", "</s>", "<s>", "<reserved>", "<other>", "<mask>"]
    words = ["▁", *"Haitol", "ai", "to", "▁H", "▁to", "▁Hai"]
    pieces = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    model = {
        "type": "BPE",
        "vocab": {piece: number for number, piece in enumerate(pieces)},
        "merges": [["a", "i"], ["t", "o"], ["▁", "H"], ["▁", "to"], ["▁H", "ai"]],
        "byte_fallback": True,
        "fuse_unk": True,
        "unk_token": "<unk>",
    }
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    added = [{"id": number, "content": piece, "special": True, **flags} for number, piece in enumerate(specials)]
    spaces = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    described = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": spaces},
        "decoder": decoder,
        "model": model,
    }
    (directory / "tokenizer.json").write_text(json.dumps(described))
    named = {"bos_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>", "unk_token": "<unk>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(named))
    (directory / "special_tokens_map.json").unlink()


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """A matrix that keeps the size of what it multiplies, a norm's weights about 1, biases about 0."""
    noise = torch.randn(shape, generator=generator)
    if len(shape) > 1:
        return noise * shape[-1] ** -0.5
    return noise / 4 + (0 if name.endswith("bias") else 1)


def _llada(sizes: Sizes) -> dict[str, Any]:
    return {
        "d_model": sizes.heads * sizes.head_dim,
        "n_layers": sizes.layers,
        "n_heads": sizes.heads,
        "n_kv_heads": sizes.kv_heads,
        "mlp_hidden_size": sizes.ff_dim,
        "vocab_size": sizes.vocab_size,
        "embedding_size": sizes.vocab_size,
        "max_sequence_length": sizes.max_model_len,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "weight_tying": sizes.tied,
        "mask_token_id": sizes.mask_id,
    }


def _qwen(sizes: Sizes) -> dict[str, Any]:
    return {
        "hidden_size": sizes.dim,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "intermediate_size": sizes.ff_dim,
        "hidden_act": "silu",
        "vocab_size": sizes.vocab_size,
        "max_position_embeddings": sizes.max_model_len,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "use_sliding_window": False,
        "tie_word_embeddings": sizes.tied,
        "mask_token_id": sizes.mask_id,
    }


def _dream(sizes: Sizes) -> dict[str, Any]:
    """Its heads divide the dimension: it says no head_dim."""
    return _qwen(sizes) | {"hidden_size": sizes.heads * sizes.head_dim, "use_mrope": False}


def _fast_dllm_v2(sizes: Sizes) -> dict[str, Any]:
    return _dream(sizes) | {"bd_size": sizes.block}


def _sdar(sizes: Sizes) -> dict[str, Any]:
    return _qwen(sizes) | {"head_dim": sizes.head_dim, "attention_bias": False, "block_size": sizes.block}


def _stable_diffcoder(sizes: Sizes) -> dict[str, Any]:
    """It says neither mask nor block."""
    return _qwen(sizes) | {"model_type": "llama", "attention_bias": False, "mlp_bias": False, "mask_token_id": None}


def _sdar_moe(sizes: Sizes) -> dict[str, Any]:
    return _sdar(sizes) | {
        "num_experts": sizes.experts,
        "num_experts_per_tok": sizes.chosen,
        "moe_intermediate_size": sizes.expert_ff_dim,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _llada_moe(sizes: Sizes) -> dict[str, Any]:
    """Its heads divide the dimension: it says no head_dim."""
    words = _qwen(sizes) | {
        "hidden_size": sizes.heads * sizes.head_dim,
        "dense_intermediate_size": sizes.ff_dim,
        "expert_intermediate_size": sizes.expert_ff_dim,
        "shared_expert_intermediate_size": None,
        "num_experts": sizes.experts,
        "num_experts_per_tok": sizes.chosen,
        "moe_layer_freq": [1] * sizes.layers,
        "moe_router_enable_expert_bias": False,
        "moe_router_score_function": "softmax",
        "norm_topk_prob": None,
        "attention_bias": False,
        "clip_qkv": None,
        "qk_layernorm": True,
        "partial_rotary_factor": 1,
    }
    del words["intermediate_size"]
    return words


def _llada2(sizes: Sizes) -> dict[str, Any]:
    return _qwen(sizes) | {
        "head_dim": sizes.head_dim,
        "num_experts": sizes.experts,
        "num_experts_per_tok": sizes.chosen,
        "num_shared_experts": 1,
        "moe_intermediate_size": sizes.expert_ff_dim,
        "first_k_dense_replace": 1,
        "n_group": sizes.groups,
        "topk_group": sizes.live_groups,
        "norm_topk_prob": True,
        "score_function": "sigmoid",
        "routed_scaling_factor": 2.5,
        "partial_rotary_factor": 0.5,
        "use_bias": False,
        "use_qkv_bias": False,
        "use_qk_norm": True,
        "block_size": sizes.block,
    }


def _wedlm(sizes: Sizes) -> dict[str, Any]:
    return _qwen(sizes) | {"head_dim": sizes.head_dim, "attention_bias": False, "qk_norm": True}


def _qwen2(sizes: Sizes) -> dict[str, Any]:
    """Its heads divide the dimension: it says no head_dim, and no mask."""
    return _qwen(sizes) | {"hidden_size": sizes.heads * sizes.head_dim, "mask_token_id": None}


def _qwen3(sizes: Sizes) -> dict[str, Any]:
    return _qwen(sizes) | {"head_dim": sizes.head_dim, "attention_bias": False, "mask_token_id": None}


def _qwen3_moe(sizes: Sizes) -> dict[str, Any]:
    moe = _sdar_moe(sizes)
    del moe["block_size"]
    return moe | {"mask_token_id": None}


def _gemma(sizes: Sizes) -> dict[str, Any]:
    text = {
        "hidden_size": sizes.dim,
        "num_hidden_layers": sizes.layers,
        "layer_types": ["sliding_attention"] * (sizes.layers - 1) + ["full_attention"],
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "num_global_key_value_heads": 1,
        "head_dim": sizes.head_dim,
        "global_head_dim": 2 * sizes.head_dim,
        "intermediate_size": sizes.ff_dim,
        "moe_intermediate_size": sizes.expert_ff_dim,
        "num_experts": sizes.experts,
        "top_k_experts": sizes.chosen,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 8,
        "vocab_size": sizes.vocab_size,
        "max_position_embeddings": sizes.max_model_len,
        "rms_norm_eps": 1e-6,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "pad_token_id": 1,
    }
    return {"text_config": text, "canvas_length": 16, "mask_token_id": sizes.mask_id, "tie_word_embeddings": True}


CONFIGS: Mapping[str, Callable[[Sizes], dict[str, Any]]] = {
    "LLaDAModelLM": _llada,
    "DreamModel": _dream,
    "Fast_dLLM_QwenForCausalLM": _fast_dllm_v2,
    "SDARForCausalLM": _sdar,
    "SDARMoeForCausalLM": _sdar_moe,
    "StableDiffcoderForCausalLM": _stable_diffcoder,
    "LLaDAMoEModelLM": _llada_moe,
    "LLaDA2MoeModelLM": _llada2,
    "WeDLMForCausalLM": _wedlm,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "DiffusionGemmaForBlockDiffusion": _gemma,
}
GEMMA = "DiffusionGemmaForBlockDiffusion"  # its canvases begin with random tokens, and one device computes it
MASKED = tuple(name for name in CONFIGS if name != GEMMA)
