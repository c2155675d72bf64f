"""The table's splits of tensors are right: devices with a part of each compute the whole together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from asynclane.models.checkpoint.config import ModelConfig, ModelError, read_config
from asynclane.models.checkpoint.families import Source, layer_sources, top_sources
from asynclane.models.checkpoint.split import Rank
from asynclane.models.checkpoint.weights import SINGLE

from ..support.checkpoints import MASKED, write_checkpoint

WAYS = 2
LAYER = 1
Weights = dict[str, Tensor]


def part(tensor: Tensor, source: Source, device: int) -> Tensor:
    """The part of a tensor that one of `WAYS` devices has."""
    rank = Rank(device, WAYS)
    found = rank.part(source, tensor)
    assert found.shape == rank.shape(source)
    return found


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


@pytest.mark.parametrize("name", MASKED)
def test_parts_of_a_layer_add_up_to_the_whole_and_those_of_the_head_lie_below_each_other(
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
    assert torch.equal(torch.cat([own["head"] for own in devices]), whole["head"])
    assert all(torch.equal(own[weight], whole[weight]) for own in devices for weight in ("norm", "embedding"))


def test_rows_that_devices_do_not_divide_are_all_with_one_of_them() -> None:
    for count in (1, 7, 8, 9, 100):
        spans = [range(*Rank(number, 8).span(count)) for number in range(8)]
        assert [row for span in spans for row in span] == [*range(count)]


@pytest.mark.parametrize(
    ("name", "ways", "message"),
    [
        ("LLaDAModelLM", 3, "--tensor-parallel-size 3 does not divide the model's heads, 4"),
        ("DreamModel", 4, "--tensor-parallel-size 4 does not divide the model's key heads, 2"),
        ("LLaDA2MoeModelLM", 64, "--tensor-parallel-size 64 does not divide the model's heads, 4"),
    ],
)
def test_a_network_that_devices_do_not_divide_is_refused(tmp_path: Path, name: str, ways: int, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Rank(0, ways).config(read_config(write_checkpoint(tmp_path, name)))


def test_each_size_that_devices_share_is_checked(tmp_path: Path) -> None:
    config = read_config(
        write_checkpoint(tmp_path, "LLaDA2MoeModelLM", heads=8, kv_heads=8, ff_dim=96, expert_ff_dim=36)
    )
    with pytest.raises(ModelError, match="MLP size of an expert, 36"):
        Rank(0, 8).config(config)
