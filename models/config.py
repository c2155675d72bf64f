"""Reads what a checkpoint says of itself, and refuses what the network here cannot compute."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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
    if not isinstance(name, str) or name not in READERS:
        raise ModelError(f"{path}: architecture {name!r} is not supported; supported: {', '.join(READERS)}")
    if raw.get("mask_token_id") is None and (mask := _mask_of_tokenizer(directory)) is not None:
        raw["mask_token_id"] = mask
    try:
        return _checked(READERS[name](name, raw))
    except KeyError as error:
        raise ModelError(f"{path} lacks {error}") from None
    except (TypeError, ValueError) as error:
        raise ModelError(f"{path}: {error}") from None


def _mask_of_tokenizer(directory: Path) -> int | None:
    """The id of the mask token that tokenizer_config.json names: some checkpoints say it nowhere else."""
    try:
        said = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
        mask = said["mask_token"]
        content = mask["content"] if isinstance(mask, dict) else mask
        return next(int(key) for key, token in said["added_tokens_decoder"].items() if token["content"] == content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return None  # then it is config.json that lacks it


def _checked(config: ModelConfig) -> ModelConfig:
    sizes = ("dim", "layers", "heads", "kv_heads", "ff_dim", "vocab_size", "max_model_len")
    for name in sizes:
        if getattr(config, name) < 1:
            raise ValueError(f"{name} is {getattr(config, name)}")
    if config.heads % config.kv_heads or config.head_dim < 2 or config.head_dim % 2:
        raise ValueError(f"{config.heads} heads of {config.head_dim} on {config.kv_heads} key heads cannot be computed")
    if not 0 <= config.mask_id < config.vocab_size:
        raise ValueError(f"mask token {config.mask_id} is not below the vocabulary's {config.vocab_size}")
    if config.block < 0:
        raise ValueError(f"block size is {config.block}")
    return config


def _require(raw: Mapping[str, Any], fixed: Mapping[str, object]) -> None:
    """Raises `ValueError` where a configuration says something else than the one way that the network knows."""
    for key, value in fixed.items():
        if raw.get(key, value) != value:
            raise ValueError(f"{key} = {raw[key]!r} is not supported, only {value!r}")


# What a configuration must say where the network here knows only one way, if it says anything.
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
_QWEN_FIXED: Mapping[str, object] = {
    "hidden_act": "silu",
    "use_sliding_window": False,
    "use_mrope": False,
}


def _llada(name: str, raw: Mapping[str, Any]) -> ModelConfig:
    _require(raw, _LLADA_FIXED)
    dim, heads = int(raw["d_model"]), int(raw["n_heads"])
    return ModelConfig(
        architecture=name,
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
        head_dim=_head_dim(raw, dim, heads),
    )


def _qwen(name: str, raw: Mapping[str, Any], **more: Any) -> ModelConfig:
    """What all families say in the words of Qwen's configurations."""
    _require(raw, _QWEN_FIXED)
    dim, heads = int(raw["hidden_size"]), int(raw["num_attention_heads"])
    return ModelConfig(
        architecture=name,
        dim=dim,
        layers=int(raw["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        ff_dim=int(raw["intermediate_size"]),
        vocab_size=int(raw["vocab_size"]),
        max_model_len=int(raw["max_position_embeddings"]),
        norm_eps=float(raw["rms_norm_eps"]),
        rope_theta=_rope_theta(raw),
        tied_head=bool(raw.get("tie_word_embeddings", False)),
        mask_id=int(raw["mask_token_id"]),
        head_dim=_head_dim(raw, dim, heads),
        **more,
    )


def _dream(name: str, raw: Mapping[str, Any]) -> ModelConfig:
    """Qwen2's network (Ye et al., arXiv 2508.15487), which predicts the token behind each position."""
    return _qwen(name, raw, qkv_bias=True, shift=1)


def _sdar(name: str, raw: Mapping[str, Any]) -> ModelConfig:
    """Qwen3's network with attention within blocks (Cheng et al., arXiv 2510.06303)."""
    _require(raw, {"attention_bias": False})
    return _qwen(name, raw, qk_norm=True, block=_block(raw))


def _head_dim(raw: Mapping[str, Any], dim: int, heads: int) -> int:
    if raw.get("head_dim") is not None:
        return int(raw["head_dim"])
    if dim % max(1, heads):
        raise ValueError(f"{heads} heads do not divide {dim} evenly")
    return dim // max(1, heads)  # no head at all is refused with the other sizes


def _rope_theta(raw: Mapping[str, Any]) -> float:
    """Older files say it at the top, newer ones among `rope_parameters`; positions are never scaled here."""
    given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = given.get("rope_type", given.get("type", "default"))
    if kind != "default":
        raise ValueError(f"rope type {kind!r} is not supported, only 'default'")
    return float(raw["rope_theta"] if "rope_theta" in raw else given["rope_theta"])


def _block(raw: Mapping[str, Any]) -> int:
    """How many positions see each other: trained into a checkpoint, so it cannot be guessed."""
    for key in ("block_size", "block_length"):
        if raw.get(key) is not None:
            if int(raw[key]) < 1:
                raise ValueError(f"{key} is {raw[key]}")
            return int(raw[key])
    raise KeyError("block_size")


READERS: Mapping[str, Callable[[str, Mapping[str, Any]], ModelConfig]] = {
    "LLaDAModelLM": _llada,
    "DreamModel": _dream,
    "SDARForCausalLM": _sdar,
}
