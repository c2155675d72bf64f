"""The random checkpoint to which the golden outputs of Fast-dLLM v2's published code belong, made again from its seed.

tests/golden/fast_dllm_v2.json.gz names repositories, revisions and arguments. `make test` takes one of its twelve
prompts.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from asynclane.models.checkpoint.registry import EMBEDDED
from asynclane.models.checkpoint.weights import SINGLE

from .checkpoints import TOKENIZER
from .scale import part

GOLDEN = json.loads(gzip.decompress((Path(__file__).parents[1] / "golden" / "fast_dllm_v2.json.gz").read_bytes()))
SOME = part(GOLDEN["prompts"], 12)
DIM, LAYERS, KEYS, FF, VOCABULARY = 128, 4, 64, 192, 1408
MASK, STOP, STAND_IN = 5, 1, 1025


def digest(tensors: dict[str, Tensor]) -> str:
    """SHA-256 of all tensors, in the order of their names."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(tensors[name].view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def weights() -> dict[str, Tensor]:
    """Normal weights in bfloat16. The mask is never chosen; special tokens rarely, but for the stop token."""
    generator = torch.Generator().manual_seed(11)

    def vector(size: int, scale: float) -> Tensor:
        return torch.randn(size, generator=generator) * scale

    def matrix(rows: int, columns: int, gain: float) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * gain / columns**0.5

    found = {"model.embed_tokens.weight": torch.randn(VOCABULARY, DIM, generator=generator)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name, rows, gain in (("q", DIM, 2.0), ("k", KEYS, 2.0), ("v", KEYS, 1.2)):
            found[at + f"self_attn.{name}_proj.weight"] = matrix(rows, DIM, gain)
            found[at + f"self_attn.{name}_proj.bias"] = vector(rows, 0.3)
        found[at + "self_attn.o_proj.weight"] = matrix(DIM, DIM, 1.2)
        found[at + "mlp.gate_proj.weight"] = matrix(FF, DIM, 1.5)
        found[at + "mlp.up_proj.weight"] = matrix(FF, DIM, 1.5)
        found[at + "mlp.down_proj.weight"] = matrix(DIM, FF, 1.5)
        found[at + "input_layernorm.weight"] = 1 + vector(DIM, 0.1)
        found[at + "post_attention_layernorm.weight"] = 1 + vector(DIM, 0.1)
    found["model.norm.weight"] = 1 + vector(DIM, 0.1)
    head = found["lm_head.weight"] = matrix(VOCABULARY, DIM, 9.0)
    head[:MASK] *= 0.25
    head[MASK] = 0
    for rows_of in (head, found["model.embed_tokens.weight"]):
        rows_of[[STOP, STAND_IN]] = rows_of[[STAND_IN, STOP]]
    return {name: tensor.bfloat16() for name, tensor in found.items()}


def write_fast_dllm_v2(directory: Path) -> Path:
    """The checkpoint as the authors publish theirs: config.json names neither the mask nor `block_size`."""
    raw: dict[str, Any] = {
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "model_type": "Fast_dLLM_Qwen",
        "bd_size": 32,
        "eos_token_id": STOP,
        "hidden_act": "silu",
        "hidden_size": DIM,
        "intermediate_size": FF,
        "layer_types": ["full_attention"] * LAYERS,
        "max_position_embeddings": 1024,
        "max_window_layers": LAYERS,
        "num_attention_heads": 4,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
        "vocab_size": VOCABULARY,
    }
    (directory / "config.json").write_text(json.dumps(raw))
    for name in TOKENIZER:
        shutil.copy(EMBEDDED / "tiny-sdar" / name, directory / name)
    save_file(weights(), directory / SINGLE)
    return directory
