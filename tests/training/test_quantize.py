"""The tool writes each format as the server reads it, within the rounding of the format, and refuses what it cannot."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from asynclane.kernels.linear import dequantize
from asynclane.models.checkpoint.config import read_config
from asynclane.models.checkpoint.registry import find_model
from asynclane.models.checkpoint.weights import SINGLE, TensorPlace, check_weights, load_weights
from asynclane.models.network import allocate
from asynclane.models.numerics import Numerics
from asynclane.training.quantize import FORMATS, INT4, main, rounded

from ..support.checkpoints import write_checkpoint

DOWN = "model.layers.0.mlp.down_proj.weight"
GROUPS = dict.fromkeys(INT4, ("--group-size", "32"))
ERROR = {"fp8-channel": 0.04, "fp8-blocks": 0.04, "awq": 0.12, "gptq": 0.12, "int4": 0.12}


def load(directory: Path) -> dict[str, TensorPlace]:
    config = read_config(directory)
    _, parts = allocate(config, Numerics(torch.float32), torch.device("cpu"))
    load_weights(check_weights(directory, config), parts)
    return parts


@pytest.mark.parametrize("form", FORMATS)
def test_a_format_means_the_weights_within_its_rounding(tmp_path: Path, form: str) -> None:
    source = write_checkpoint(tmp_path / "plain", "SDARMoeForCausalLM")
    assert main([str(source), str(tmp_path / form), "--format", form, *GROUPS.get(form, ())]) == 0
    want, got = load(source), load(tmp_path / form)
    for name, place in want.items():
        rows = slice(place.start, place.end)
        plain, rounded = (dequantize(each.weight)[rows] for each in (place, got[name]))
        error = ((plain - rounded).norm() / plain.norm()).item()
        inner = plain.dim() == 2 and ".layers." in name and "mlp.gate.weight" not in name
        assert math.isclose(error, 0) if not inner else 0 < error < ERROR[form], name


def test_columns_make_up_for_the_rounding_of_those_before_them() -> None:
    """So far as inputs are alike: the product's error falls, while the weight's grows."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn((24, 64), generator=generator)
    x = torch.randn((200, 8), generator=generator) @ torch.randn((8, 64), generator=generator)
    x = x + torch.randn(x.shape, generator=generator) / 4

    def errors(inputs: torch.Tensor | None) -> tuple[float, float]:
        numbers, zeros, scales = rounded(weight, 32, inputs)
        zeros, wide = zeros.repeat_interleave(32, 1), scales.float().repeat_interleave(32, 1)
        error = (numbers - zeros) * wide - weight
        return (x @ error.T).norm().item(), error.norm().item()

    nearest, calibrated = errors(None), errors(x.T @ x)
    assert calibrated[0] < 0.6 * nearest[0]
    assert calibrated[1] > nearest[1]


def test_what_cannot_be_written_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = str(find_model("tiny-llada"))
    (tmp_path / "there").mkdir()
    for target, group, message in (
        ("there", "128", "there exists already"),
        ("new", "100", "--group-size 100 does not divide 256 inputs"),
        ("new", "0", "--group-size must be positive, not 0"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main([tiny, str(tmp_path / target), "--format", "awq", "--group-size", group])
        assert capsys.readouterr().err.splitlines()[-1].endswith(message)
    for spoil, message in (
        (lambda tensors: tensors[DOWN].view(-1)[:1].fill_(math.nan), f"{DOWN} has numbers that are not finite"),
        (lambda tensors: tensors.update({"layers.x": tensors.pop(DOWN)}), f"has no {DOWN} to quantize"),
        (lambda tensors: None, "file not fully covered"),
    ):
        source = write_checkpoint(tmp_path / "source", "DreamModel")
        tensors = load_file(source / SINGLE)
        spoil(tensors)
        save_file(tensors, source / SINGLE)
        if message == "file not fully covered":
            (source / SINGLE).write_bytes((source / SINGLE).read_bytes()[:-3])
        with pytest.raises(SystemExit, match="2"):
            main([str(source), str(tmp_path / "new"), "--format", "awq", "--group-size", "32"])
        assert capsys.readouterr().err.splitlines()[-1].endswith(message)
        assert not (tmp_path / "new").exists()
    with pytest.raises(SystemExit, match="2"):
        main([tiny, str(tmp_path / "new"), "--format", "fp8-blocks", "--calibrate"])
    assert "--calibrate is for awq, gptq, int4 and one of tiny-llada" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([tiny, str(tmp_path / "new"), "--format", "fp8-blocks", "--group-size", "64"])
    assert "--group-size is for awq, gptq, int4" in capsys.readouterr().err
