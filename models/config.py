"""Reads what a checkpoint says of itself, and refuses what the networks here cannot compute."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ModelError(ValueError):
    """A checkpoint that cannot be served; the message says what is wrong with which file."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a transformer without a causal mask, with rotary positions, RMS norms and SwiGLU.

    `qkv_bias`: queries, keys and values have biases. `qk_norm`: each head's queries and keys are normed before they are
    rotated. `shift` 1: the hidden state at a position predicts the token behind it. `block` 0: every position sees
    every other; n: position p sees those below `(p // n + 1) * n`.
    """

    architecture: str
    dim: int
    layers: int
    heads: int
    kv_heads: int
    ff_dim: int
    vocab_size: int
    max_model_len: int
    norm_eps: float
    rope_theta: float
    tied_head: bool
    mask_id: int
    head_dim: int
    qkv_bias: bool = False
    qk_norm: bool = False
    shift: int = 0
    block: int = 0


def read_config(directory: Path) -> ModelConfig:
    """Raises `ModelError` for a missing or broken file, an unknown architecture or an unsupported variant."""
    path = directory / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{directory} has no config.json: not a model directory") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    names = raw.get("architectures") if isinstance(raw, dict) else None
    name = names[0] if isinstance(names, list) and names else None
    if name not in READERS:
        raise ModelError(f"{path}: architecture {name!r} is not supported; supported: {', '.join(READERS)}")
    try:
        return _checked(READERS[name](raw))
    except KeyError as error:
        raise ModelError(f"{path} lacks {error}") from None
    except (TypeError, ValueError) as error:
        raise ModelError(f"{path}: {error}") from None


def _checked(config: ModelConfig) -> ModelConfig:
    sizes = ("dim", "layers", "heads", "kv_heads", "ff_dim", "vocab_size", "max_model_len")
    for name in sizes:
        if getattr(config, name) < 1:
            raise ValueError(f"{name} is {getattr(config, name)}")
    if config.heads % config.kv_heads or config.head_dim < 2 or config.head_dim % 2:
        raise ValueError(f"{config.heads} heads of {config.head_dim} on {config.kv_heads} key heads cannot be computed")
    if not 0 <= config.mask_id < config.vocab_size:
        raise ValueError(f"mask token {config.mask_id} is not below the vocabulary's {config.vocab_size}")
    return config


# What LLaDA's configuration must say where the network here knows only one way.
_LLADA_FIXED: Mapping[str, object] = {
    "activation_type": "silu",
    "alibi": False,
    "attention_layer_norm": False,
    "block_type": "llama",
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "rope": True,
    "scale_logits": False,
}


def _llada(raw: Mapping[str, Any]) -> ModelConfig:
    for key, value in _LLADA_FIXED.items():
        if raw.get(key, value) != value:
            raise ValueError(f"{key} = {raw[key]!r} is not supported, only {value!r}")
    dim, heads = int(raw["d_model"]), int(raw["n_heads"])
    if dim % max(1, heads):
        raise ValueError(f"{heads} heads do not divide {dim} evenly")
    return ModelConfig(
        architecture="LLaDAModelLM",
        dim=dim,
        layers=int(raw["n_layers"]),
        heads=heads,
        kv_heads=int(raw.get("n_kv_heads") or heads),
        ff_dim=int(raw.get("mlp_hidden_size") or raw["mlp_ratio"] * raw["d_model"]),
        vocab_size=int(raw.get("embedding_size") or raw["vocab_size"]),
        max_model_len=int(raw["max_sequence_length"]),
        norm_eps=float(raw.get("rms_norm_eps", 1e-5)),
        rope_theta=float(raw.get("rope_theta", 10000.0)),
        tied_head=bool(raw.get("weight_tying", False)),
        mask_id=int(raw["mask_token_id"]),
        head_dim=dim // max(1, heads),  # no head at all is refused with the other sizes
    )


READERS = {"LLaDAModelLM": _llada}
