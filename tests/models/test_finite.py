"""Numbers that are not finite are found in every type, and large sums of finite ones are not taken for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from asynclane.models.checkpoint.config import ModelError, read_config
from asynclane.models.checkpoint.weight_report import weight_report
from asynclane.models.checkpoint.weights import SINGLE
from asynclane.server.cli import main as cli

from ..support.checkpoints import write_checkpoint
from ..support.quantized import quantize

NORM = "model.layers.1.input_layernorm.weight"


@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.float32, math.nan), (torch.bfloat16, math.inf), (torch.float16, -math.inf)]
)
def test_a_number_of_plain_weights_is_found(
    tmp_path: Path, dtype: torch.dtype, value: float, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_checkpoint(tmp_path / "model", "DreamModel")
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(directory / SINGLE).items()}
    tensors[NORM][:] = torch.finfo(dtype).max  # whose sum is none
    save_file(tensors, directory / SINGLE)
    assert cli.main(["inspect", str(directory), "--check-weights"]) == 0
    assert "all are finite" in capsys.readouterr().out
    tensors[NORM][-1] = value
    save_file(tensors, directory / SINGLE)
    assert cli.main(["inspect", str(directory)]) == 0  # which reads headers
    assert cli.main(["inspect", str(directory), "--check-weights"]) == 2
    assert f"{NORM} has numbers that are not finite" in capsys.readouterr().err


def test_a_number_of_fp8_is_found(tmp_path: Path) -> None:
    quantize(write_checkpoint(tmp_path, "DreamModel"), "ct channel")
    weight_report(tmp_path, read_config(tmp_path), check=True)
    tensors = load_file(tmp_path / SINGLE)
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name].view(torch.uint8)[3, 3] = 0xFF
    save_file(tensors, tmp_path / SINGLE)
    with pytest.raises(ModelError, match=f"{name} has numbers that are not finite"):
        weight_report(tmp_path, read_config(tmp_path), check=True)


@pytest.mark.parametrize(
    ("form", "role", "change", "message"),
    [
        ("ct int4", "weight_shape", lambda tensor: -tensor, r"weight_shape is \[-64, -64\], not \[64, 64\]"),
        ("gptq", "g_idx", lambda tensor: 0 * tensor, "g_idx is not in order"),
        ("gptq act order", "g_idx", lambda tensor: -1 - tensor, "g_idx names groups that are not among 2"),
        ("awq", "scales", lambda tensor: 0 * tensor.float() + 3e38, "numbers times scales are not finite"),
        ("fp8", "weight_scale", lambda tensor: 0 * tensor + 3e38, "numbers times scales are not finite"),
        ("fp8 blocks", "weight_scale_inv", lambda tensor: 0 * tensor + 3e38, "numbers times scales are not finite"),
    ],
)
def test_what_loading_a_quantized_matrix_would_refuse_is_found(
    tmp_path: Path, form: str, role: str, change: Callable[[Tensor], Tensor], message: str
) -> None:
    quantize(write_checkpoint(tmp_path, "DreamModel"), form)
    weight_report(tmp_path, read_config(tmp_path), check=True)
    tensors = load_file(tmp_path / SINGLE)
    name = f"model.layers.1.self_attn.q_proj.{role}"
    tensors[name] = change(tensors[name])
    save_file(tensors, tmp_path / SINGLE)
    weight_report(tmp_path, read_config(tmp_path))  # which reads headers
    with pytest.raises(ModelError, match=rf"model\.layers\.1\.self_attn\.q_proj\.weight: {message}"):
        weight_report(tmp_path, read_config(tmp_path), check=True)
