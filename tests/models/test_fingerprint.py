"""A checkpoint is recognized by its weights, wherever it lies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from asynclane.models.checkpoint.config import ModelError
from asynclane.models.checkpoint.fingerprint import fingerprint


def written(directory: Path, weights: dict[str, np.ndarray], name: str = "model.safetensors") -> Path:
    directory.mkdir()
    save_file(weights, directory / name)
    return directory


def test_the_same_weights_have_the_same_fingerprint_and_others_another(tmp_path: Path) -> None:
    weights = {f"layer.{number}": np.full((64, 64), number, np.float32) for number in range(3)}
    first = fingerprint(written(tmp_path / "first", weights))
    assert first == fingerprint(written(tmp_path / "again", load_file(tmp_path / "first" / "model.safetensors")))
    tuned = {**weights, "layer.1": weights["layer.1"] * 1.001}
    renamed = {name.replace("layer", "block"): array for name, array in weights.items()}
    others = [fingerprint(written(tmp_path / str(number), each)) for number, each in enumerate((tuned, renamed))]
    adapter = written(tmp_path / "adapter", {"lora": weights["layer.2"]}, "adapter_model.safetensors")
    others.append(fingerprint(tmp_path / "first", adapter))
    assert len({first, *others}) == 4


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"\x02" + bytes(7) + b"[]"])
def test_a_broken_file_is_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="cannot be read"):
        fingerprint(tmp_path)
