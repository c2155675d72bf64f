"""LoRA adapters: merged weights are W + scale * B A, whatever the weights are stored as; what cannot be merged is
refused with one line."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from asynclane.kernels.common.types import Fp8Matrix
from asynclane.kernels.linear import dequantize
from asynclane.models.checkpoint.config import ModelError, read_config
from asynclane.models.checkpoint.families import Source, layer_sources
from asynclane.models.checkpoint.registry import with_adapter
from asynclane.models.checkpoint.split import WHOLE, Rank
from asynclane.models.checkpoint.weights import SINGLE, as_stored, check_weights, load_weights
from asynclane.models.network import allocate
from asynclane.models.numerics import Numerics
from asynclane.server.cli import main as cli
from asynclane.server.engine.wiring import build_parts
from asynclane.server.settings import Settings, SettingsError

from ..support.checkpoints import write_checkpoint
from ..support.quantized import quantize

PLAIN = Numerics(torch.float32)
Q, DOWN = "model.layers.1.self_attn.q_proj", "model.layers.0.mlp.down_proj"
SHAPES = {Q: (64, 64), DOWN: (64, 96)}
RANK, ALPHA = 4, 6


def write_adapter(directory: Path, ranks: dict[str, int] | None = None, **said: Any) -> Path:
    """An adapter for a small DreamModel, with factors of `ranks` by module."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "x",
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.1,
        "target_modules": ["q_proj", "down_proj"],
        "bias": "none",
        "use_dora": False,
        "modules_to_save": None,
    }
    (directory / "adapter_config.json").write_text(json.dumps(config | said))
    generator = torch.Generator().manual_seed(7)
    tensors = {}
    for module, (rows, columns) in SHAPES.items():
        rank = (ranks or {}).get(module, RANK)
        for factor, shape in (("A", (rank, columns)), ("B", (rows, rank))):
            tensors[f"base_model.model.{module}.lora_{factor}.weight"] = torch.randn(shape, generator=generator) / 8
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory


def product(adapter: Path, module: str) -> Tensor:
    tensors = load_file(adapter / "adapter_model.safetensors")
    b, a = (tensors[f"base_model.model.{module}.lora_{factor}.weight"] for factor in "BA")
    return b @ a


def load(
    directory: Path, adapter: Path, numerics: Numerics = PLAIN, rank: Rank = WHOLE
) -> Callable[[str], tuple[object, Tensor]]:
    """By the name of a weight: the matrix that it is in, and its numbers."""
    config = with_adapter(read_config(directory), str(adapter))
    stored = check_weights(directory, config)
    _, parts = allocate(as_stored(config, stored), numerics, torch.device("cpu"), rank)
    load_weights(stored, parts)

    def numbers(name: str) -> tuple[object, Tensor]:
        place = parts[name]
        return place.weight, dequantize(place.weight)[place.start : place.end]

    return numbers


@pytest.mark.parametrize(
    ("said", "ranks", "scales"),
    [
        ({}, {}, {Q: 1.5, DOWN: 1.5}),
        ({"use_rslora": True}, {}, {Q: 3.0, DOWN: 3.0}),
        (
            {"rank_pattern": {"mlp.down_proj": 8}, "alpha_pattern": {"layers.1.self_attn.q_proj": 2, "q_proj": 9}},
            {DOWN: 8},
            {Q: 0.5, DOWN: 0.75},
        ),
        ({"rank_pattern": {"down": 8}, "use_rslora": True, "lora_alpha": 1.0}, {}, {Q: 0.5, DOWN: 0.5}),
    ],
)
def test_a_weight_gets_the_scaled_product_of_its_factors(
    tmp_path: Path, said: dict[str, Any], ranks: dict[str, int], scales: dict[str, float]
) -> None:
    directory = write_checkpoint(tmp_path / "model", "DreamModel")
    adapter = write_adapter(tmp_path / "adapter", ranks, **said)
    numbers, plain = load(directory, adapter), load_file(directory / SINGLE)
    for name, tensor in plain.items():
        module = name.removesuffix(".weight")
        want = tensor + product(adapter, module) * scales[module] if module in scales else tensor
        torch.testing.assert_close(numbers(name)[1], want, atol=1e-6, rtol=0)


def test_names_may_lack_the_prefix_of_the_network(tmp_path: Path) -> None:
    directory, adapter = write_checkpoint(tmp_path / "model", "DreamModel"), write_adapter(tmp_path / "adapter")
    want = load(directory, adapter)(f"{Q}.weight")[1]
    renamed("base_model.model.model.", "base_model.model.")(adapter)
    assert torch.equal(load(directory, adapter)(f"{Q}.weight")[1], want)


def test_ranks_have_parts_of_the_sum(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", "DreamModel")
    adapter = write_adapter(tmp_path / "adapter")
    whole, config = load(directory, adapter), read_config(directory)
    sources: dict[str, Source] = {s.name: s for layer in range(2) for s in layer_sources(config, layer)}
    for rank in (Rank(0, 2), Rank(1, 2)):
        part = load(directory, adapter, rank=rank)
        for module in SHAPES:
            source = sources[f"{module}.weight"]
            assert torch.equal(part(source.name)[1], rank.part(source, whole(source.name)[1]))


def test_a_quantized_matrix_that_an_adapter_changes_becomes_plain_and_no_other(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", "DreamModel")
    meant, adapter = quantize(directory, "ct channel"), write_adapter(tmp_path / "adapter")
    numbers = load(directory, adapter, Numerics(torch.bfloat16, fp8=True))
    matrix, found = numbers(f"{DOWN}.weight")
    want = meant[f"{DOWN}.weight"] + product(adapter, DOWN) * (ALPHA / RANK)
    assert isinstance(matrix, Tensor)
    assert torch.equal(found, want.bfloat16().float())
    assert isinstance(numbers(f"{DOWN}.weight".replace("0", "1"))[0], Fp8Matrix)


def test_the_settings_and_inspect_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_checkpoint(tmp_path / "model", "DreamModel")
    adapter = write_adapter(tmp_path / "adapter")
    settings = {"model": str(directory), "device": "cpu", "lora": str(adapter), "max_num_seqs": 2}
    parts = build_parts(Settings(**settings))
    parts.close()
    assert cli.main(["inspect", str(directory), "--lora", str(adapter)]) == 0
    assert re.search("^adapter +adapter, rank 4, for 2 matrices$", capsys.readouterr().out, re.M)
    assert cli.main(["inspect", "--lora", str(adapter)]) == 2
    assert "--lora needs a model: give its name or directory" in capsys.readouterr().err
    with pytest.raises(SettingsError, match="--lora adds to a checkpoint's weights: leave out --load-format dummy"):
        build_parts(Settings(**settings, load_format="dummy"))


def spoil(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def spoiled(directory: Path) -> None:
        tensors = load_file(directory / "adapter_model.safetensors")
        change(tensors)
        save_file(tensors, directory / "adapter_model.safetensors")

    return spoiled


def as_fifo(name: str) -> Callable[[Path], None]:
    def changed(directory: Path) -> None:
        (directory / name).unlink()
        os.mkfifo(directory / name)

    return changed


def renamed(old: str, new: str) -> Callable[[Path], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            tensors[name.replace(old, new)] = tensors.pop(name)

    return spoil(change)


A = f"base_model.model.{Q}.lora_A.weight"
DEFAULT_A = A.replace(".weight", ".default.weight")


def without_prefix(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.replace(".model.model.", ".model."): tensor.clone() for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("said", "change", "message"),
    [
        ({"peft_type": "IA3"}, None, "peft_type = 'IA3' is not supported, only 'LORA'"),
        ({"use_dora": True}, None, "use_dora = 'True' is not supported"),
        ({"bias": "all"}, None, "bias = 'all' is not supported, only 'none'"),
        ({"modules_to_save": ["lm_head"]}, None, "modules_to_save = "),
        ({"layer_replication": [[0, 2]]}, None, "layer_replication = "),
        ({"a_key_of_tomorrow": 1}, None, "a_key_of_tomorrow = '1' is not supported"),
        ({"init_lora_weights": "pissa"}, None, "init_lora_weights = 'pissa' is not supported, only True or False or"),
        ({"r": 0}, None, "r = 0 is no positive number"),
        ({"lora_alpha": "x"}, None, "lora_alpha = 'x' is no number"),
        ({"lora_alpha": 10**400}, None, "lora_alpha = 10+ is no number up to"),
        ({"lora_alpha": 1e300}, None, "is no number up to 1000000.0"),
        ({"rank_pattern": {"a{99999999999}": 4}}, None, "rank_pattern has .* no regular expression"),
        ({"rank_pattern": {"(" * 5000: 4}}, None, "rank_pattern has .* no regular expression"),
        ({"rank_pattern": {"(": 4}}, None, "rank_pattern has .* no regular expression"),
        ({"rank_pattern": {"(a+)+": 4}}, None, "a regular expression that repeats too much"),
        ({"r": 8}, None, r"lora_A.weight is \[4, \d+\], model and adapter_config.json say \[8, \d+\]"),
        ({}, spoil(lambda tensors: tensors.pop(A)), f"{Q} lacks lora_A"),
        ({}, spoil(lambda tensors: tensors.update({A: tensors[A].long()})), f"{A} is I64, only BF16, F16, F32"),
        ({}, spoil(lambda tensors: tensors.clear()), "has no lora_A and lora_B"),
        ({}, spoil(lambda tensors: tensors.update({DEFAULT_A: tensors[A].clone()})), f"lora_A of {Q} is there twice"),
        ({}, spoil(lambda tensors: tensors.update(without_prefix(tensors))), "has factors twice, under names with and"),
        ({}, renamed("q_proj", "z_proj"), "z_proj is no matrix of this model that can be changed"),
        ({}, renamed("lora_A", "lora_magnitude"), "only lora_A and lora_B of matrices"),
        ({}, renamed(Q, "model.embed_tokens"), "model.embed_tokens is no matrix of this model that can be changed"),
        ({}, lambda d: (d / "adapter_model.safetensors").unlink(), "has no adapter_model.safetensors"),
        ({}, lambda d: (d / "adapter_model.safetensors").write_bytes(b"x"), "adapter_model.safetensors cannot be read"),
        ({}, as_fifo("adapter_model.safetensors"), "adapter_model.safetensors is no regular file"),
        ({}, as_fifo("adapter_config.json"), "adapter_config.json is no regular file"),
        ({}, lambda d: (d / "adapter_config.json").unlink(), "has no adapter_config.json: not the directory of an"),
        ({}, lambda d: (d / "adapter_config.json").write_text("["), "adapter_config.json cannot be read"),
    ],
)
def test_what_cannot_be_merged_is_refused_in_one_line(
    tmp_path: Path, said: dict[str, Any], change: Callable[[Path], object] | None, message: str
) -> None:
    config = read_config(write_checkpoint(tmp_path / "model", "DreamModel"))
    adapter = write_adapter(tmp_path / "adapter", **said)
    if change is not None:
        change(adapter)
    with pytest.raises(ModelError, match=message) as raised:
        with_adapter(config, str(adapter))
    assert str(raised.value).startswith("--lora: ")
    assert "\n" not in str(raised.value)


def test_factors_that_are_no_finite_numbers_are_named(tmp_path: Path) -> None:
    """Training that diverged leaves them, and every answer would be NaN."""
    directory = write_checkpoint(tmp_path / "model", "DreamModel")
    adapter = write_adapter(tmp_path / "adapter")
    spoil(lambda tensors: tensors[A].view(-1)[:1].fill_(math.nan))(adapter)
    with pytest.raises(ModelError, match=rf"{Q}\.lora_B\.weight and .*lora_A\.weight are not finite numbers"):
        load(directory, adapter)
    assert cli.main(["inspect", str(directory), "--lora", str(adapter)]) == 0  # which reads headers
    assert cli.main(["inspect", str(directory), "--lora", str(adapter), "--check-weights"]) == 2


def test_a_head_that_is_the_embedding_cannot_be_changed(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter")
    renamed(Q, "lm_head")(adapter)
    spoil(lambda tensors: tensors.update({"base_model.model.lm_head.lora_B.weight": torch.ones(1408, RANK)}))(adapter)
    for tied in (False, True):
        config = read_config(write_checkpoint(tmp_path / f"{tied}", "DreamModel", tied=tied))
        if not tied:
            assert math.isclose(with_adapter(config, str(adapter)).adapter.factors["lm_head.weight"].scale, 1.5)
            continue
        with pytest.raises(ModelError, match="lm_head is no matrix of this model that can be changed"):
            with_adapter(config, str(adapter))
