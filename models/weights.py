"""Reads safetensors, one file or many, and checks names and shapes in both directions before any memory is taken."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..kernels import ops
from ..kernels.linear import Fp8Matrix, Matrix
from .config import ModelError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES = ("BF16", "F16", "F32")  # others are numbers only together with scales that are not read
SHOWN = 3  # names in an error, before "and N more"


@dataclass(frozen=True, slots=True)
class Part:
    """Where a tensor of the checkpoint goes: rows `[start, end)` of a weight."""

    weight: Matrix
    start: int
    end: int

    def put(self, tensor: Tensor) -> None:
        """Copies it there, in the weight's type."""
        if isinstance(self.weight, Fp8Matrix):
            values, scales = ops.quantize_rows(tensor.to(self.weight.values.device))
            self.weight.values[self.start : self.end] = values
            self.weight.scales[self.start : self.end] = scales
        else:
            self.weight[self.start : self.end].copy_(tensor)


def check_weights(directory: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises `ModelError` if a file cannot be read, or if a tensor is missing, unexpected or of another shape."""
    found: set[str] = set()
    for path in _files(directory):
        try:
            with safe_open(path, framework="pt") as shard:
                for name in shard.keys():  # noqa: SIM118 - not a mapping
                    tensor = shard.get_slice(name)
                    _check_shape(path, name, tuple(tensor.get_shape()), shapes)
                    if tensor.get_dtype() not in DTYPES:
                        kinds = ", ".join(DTYPES)
                        raise ModelError(f"{path}: {name} is {tensor.get_dtype()}, only {kinds} can be read")
                    found.add(name)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path} cannot be read: {error}") from None
    missing = [name for name in shapes if name not in found]
    if missing:
        raise ModelError(f"{directory} lacks {_some(missing)}")


def load_weights(directory: Path, parts: Mapping[str, Part]) -> None:
    """Puts each tensor where it belongs, one at a time: besides the weights, memory holds one tensor.

    The directory has passed `check_weights`. Raises `ModelError` if a file can no longer be read.
    """
    for path in _files(directory):
        try:
            with safe_open(path, framework="pt") as shard:
                for name in shard.keys():  # noqa: SIM118 - not a mapping
                    parts[name].put(shard.get_tensor(name))
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path} cannot be read: {error}") from None


def _files(directory: Path) -> list[Path]:
    index = directory / INDEX
    if not index.exists():
        if not (directory / SINGLE).exists():
            raise ModelError(f"{directory} has neither {SINGLE} nor {INDEX}")
        return [directory / SINGLE]
    try:
        names = sorted({str(name) for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} cannot be read: {error!r}") from None
    missing = [name for name in names if not (directory / name).exists()]
    if missing:
        raise ModelError(f"{directory} lacks {_some(missing)}, named in {INDEX}")
    return [directory / name for name in names]


def _check_shape(path: Path, name: str, shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> None:
    if name not in shapes:
        raise ModelError(f"{path} has an unexpected tensor {name}")
    if shape != shapes[name]:
        raise ModelError(f"{path}: {name} is {list(shape)}, config.json says {list(shapes[name])}")


def _some(names: list[str]) -> str:
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")
