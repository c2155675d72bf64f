"""The table's splits of tensors are right: devices with a part of each compute the whole together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from asynclane.models.checkpoint.config import ModelConfig, read_config
from asynclane.models.checkpoint.families import Source, layer_sources, top_sources
from asynclane.models.checkpoint.weights import SINGLE

from ..support.checkpoints import CONFIGS, write_checkpoint

WAYS = 2
LAYER = 1
Weights = dict[str, Tensor]


def part(tensor: Tensor, source: Source, device: int) -> Tensor:
    """The part of a tensor that one of `WAYS` devices has."""
    if source.split == "whole":
        return tensor
    if source.split == "columns":
        return tensor.chunk(WAYS, dim=1)[device]
    return torch.cat([rows.chunk(WAYS)[device] for rows in tensor.split(source.parts)])


def weights_of(tensors: Weights, sources: list[Source]) -> Weights:
    """Tensors below each other, as they lie in memory."""
    made = dict[str, list[Tensor]]()
    for source in sources:
        made.setdefault(source.weight, []).append(tensors[source.name])
    return {weight: torch.cat(parts) for weight, parts in made.items()}


def weights_by_device(directory: Path, sources: list[Source]) -> list[Weights]:
    """Weights of the whole, and of each device."""
    tensors = load_file(directory / SINGLE)
    devices = [{s.name: part(tensors[s.name], s, device) for s in sources} for device in range(WAYS)]
    return [weights_of(each, sources) for each in (tensors, *devices)]


def mlp(x: Tensor, gate_up: Tensor, out: Tensor) -> Tensor:
    gate, up = (x @ gate_up.T).chunk(2, dim=-1)
    return (F.silu(gate) * up) @ out.T


def attention(x: Tensor, weights: Weights, config: ModelConfig, ways: int) -> Tensor:
    """Without rotation and norms, which are each head's own."""
    heads, kv_heads = config.heads // ways, config.kv_heads // ways
    qkv = F.linear(x, weights["qkv"], weights.get("qkv_bias")).view(len(x), -1, config.head_dim).transpose(0, 1)
    queries, keys, values = qkv.split([heads, kv_heads, kv_heads])
    out = F.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)
    return out.transpose(0, 1).flatten(1) @ weights["attn_out"].T


@pytest.mark.parametrize("name", CONFIGS)
def test_parts_of_a_layer_add_up_to_the_whole_and_those_of_embedding_and_head_lie_below_each_other(
    tmp_path: Path, name: str
) -> None:
    config = read_config(write_checkpoint(tmp_path, name))
    whole, *devices = weights_by_device(tmp_path, layer_sources(config, LAYER))
    x = torch.randn(5, config.dim, generator=torch.Generator().manual_seed(0))
    want = attention(x, whole, config, 1)
    torch.testing.assert_close(sum(attention(x, own, config, WAYS) for own in devices), want, atol=1e-5, rtol=0)
    computed = 0
    if "gate_up" in whole:
        want = mlp(x, whole["gate_up"], whole["ff_out"])
        got = sum(mlp(x, own["gate_up"], own["ff_out"]) for own in devices)
        torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
        computed += 1
    for expert in range(config.experts.count if config.experts else 0):
        whole_one, *ones = (
            [own[weight].chunk(8)[expert] for weight in ("expert_gate_up", "expert_out")] for own in (whole, *devices)
        )
        torch.testing.assert_close(sum(mlp(x, *one) for one in ones), mlp(x, *whole_one), atol=1e-5, rtol=0)
        computed += 1
    assert computed
    whole, *devices = weights_by_device(tmp_path, top_sources(config))
    for weight in ("embedding", "head"):
        assert torch.equal(torch.cat([own[weight] for own in devices]), whole[weight])
    assert all(torch.equal(own["norm"], whole["norm"]) for own in devices)
