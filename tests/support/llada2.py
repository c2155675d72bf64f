"""LLaDA2's network in plain torch, from its configuration: the truth where no library has it.

Sources: inclusionAI's configuration and modelling code of LLaDA2.0; Bie et al., arXiv 2512.15745.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

Weights = dict[str, Tensor]


def llada2_logits(directory: Path, ids: list[int], mask: Tensor) -> Tensor:
    """[tokens, vocabulary] float32; mask [tokens, tokens] bool, where a token may attend."""
    said = json.loads((directory / "config.json").read_text())
    weights = load_file(directory / "model.safetensors")
    x = weights.pop("model.word_embeddings.weight")[ids]
    for layer in range(said["num_hidden_layers"]):
        own = {
            name.removeprefix(f"model.layers.{layer}."): weights.pop(name)
            for name in list(weights)
            if name.startswith(f"model.layers.{layer}.")
        }
        x = x + _attention(_norm(x, own["input_layernorm.weight"], said), own, said, mask)
        normed = _norm(x, own["post_attention_layernorm.weight"], said)
        dense = layer < said["first_k_dense_replace"]
        x = x + (_mlp(normed, own, "mlp") if dense else torch.stack([_mixture(token, own, said) for token in normed]))
    head, norm = weights.pop("lm_head.weight"), weights.pop("model.norm.weight")
    assert not weights, "tensors that nothing reads"
    return _norm(x, norm, said) @ head.T


def _norm(x: Tensor, weight: Tensor, said: dict[str, Any]) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + said["rms_norm_eps"]).sqrt() * weight


def _mlp(x: Tensor, own: Weights, name: str) -> Tensor:
    gate, up, down = (own[f"{name}.{part}_proj.weight"] for part in ("gate", "up", "down"))
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


def _attention(x: Tensor, own: Weights, said: dict[str, Any], mask: Tensor) -> Tensor:
    heads, kv_heads, dim = said["num_attention_heads"], said["num_key_value_heads"], said["head_dim"]
    qkv = (x @ own["attention.query_key_value.weight"].T).view(len(x), heads + 2 * kv_heads, dim)
    queries, keys, values = qkv.split([heads, kv_heads, kv_heads], dim=1)
    queries = _rotated(_norm(queries, own["attention.query_layernorm.weight"], said), said)
    keys = _rotated(_norm(keys, own["attention.key_layernorm.weight"], said), said)
    out = torch.empty(len(x), heads, dim)
    for head in range(heads):
        of = head * kv_heads // heads
        scores = (queries[:, head] @ keys[:, of].T / dim**0.5).masked_fill(~mask, float("-inf"))
        out[:, head] = scores.softmax(-1) @ values[:, of]
    return out.flatten(1) @ own["attention.dense.weight"].T


def _rotated(x: Tensor, said: dict[str, Any]) -> Tensor:
    """Pairs (i, i + half) of the first numbers of each head turn by position / theta^(i / half)."""
    half = int(said["head_dim"] * said["partial_rotary_factor"]) // 2
    angle = torch.arange(len(x))[:, None, None] / said["rope_theta"] ** (torch.arange(half) / half)
    low, high, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin(), rest), dim=-1)


def _mixture(x: Tensor, own: Weights, said: dict[str, Any]) -> Tensor:
    scores = torch.sigmoid(own["mlp.gate.weight"] @ x)
    ranked = scores + own["mlp.gate.expert_bias"]
    groups = ranked.view(said["n_group"], -1)
    strength = groups.sort(descending=True).values[:, :2].sum(-1).tolist()
    live = sorted(range(len(groups)), key=lambda group: -strength[group])[: said["topk_group"]]
    size = groups.shape[1]
    candidates = [expert for group in live for expert in range(group * size, (group + 1) * size)]
    chosen = sorted(candidates, key=lambda expert: -float(ranked[expert]))[: said["num_experts_per_tok"]]
    weights = scores[chosen]
    if len(chosen) > 1:
        weights = weights / (weights.sum() + 1e-20)
    out = sum(
        weight * said["routed_scaling_factor"] * _mlp(x, own, f"mlp.experts.{expert}")
        for weight, expert in zip(weights, chosen, strict=True)
    )
    shared = _mlp(x, own, "mlp.shared_experts") if said["num_shared_experts"] else torch.zeros_like(x)
    return out + shared
