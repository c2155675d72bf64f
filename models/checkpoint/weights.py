"""Reads safetensors, one file or many, and checks names and shapes in both directions before any memory is taken."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...kernels.common.types import Fp8Matrix, Matrix
from ...kernels.linear import quantize_rows
from .config import ModelConfig, ModelError
from .families import tensor_shapes, tied_copy

PREFIX = "model."
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES = ("BF16", "F16", "F32")  # others need scales, which are not read
DERIVED = re.compile(r"(.+\.)?rotary_emb\.((original_)?inv_freq|(cos|sin)_cached)")  # follow from config.json
ROWS = 1024  # that are compared at once
SHOWN = 3  # names in an error, before "and N more"


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """The place of a tensor of the checkpoint: rows `[start, end)` of a weight. `part` takes of the tensor what this
    device has; None: all of it."""

    weight: Matrix
    start: int
    end: int
    part: Callable[[Tensor], Tensor] | None = None

    def put(self, tensor: Tensor) -> None:
        """Copy a tensor to its place, in the weight's type."""
        if self.part is not None:
            tensor = self.part(tensor)
        if isinstance(self.weight, Fp8Matrix):
            values, scales = quantize_rows(tensor.to(self.weight.values.device))
            self.weight.values[self.start : self.end] = values
            self.weight.scales[self.start : self.end] = scales
        else:
            self.weight[self.start : self.end].copy_(tensor)


def check_weights(directory: Path, config: ModelConfig) -> dict[str, str]:
    """The stored type of each tensor that is loaded, from the files' headers. Raises `ModelError` if a file cannot be
    read, or a tensor is missing, unexpected, there twice or of another shape.

    A head that the embedding replaces may be stored if it equals it: only then both are read.
    """
    shapes, tied = tensor_shapes(config), tied_copy(config)
    head, embedding = tied or ("", "")
    expected = {**shapes, head: shapes[embedding]} if tied else shapes
    found: dict[str, str] = {}
    places: dict[str, tuple[Path, str]] = {}  # files, and names in them
    for path in _files(directory):
        try:
            with safe_open(path, framework="pt") as shard:
                for stored in shard.keys():  # noqa: SIM118 - not a mapping
                    name = _in_full(stored, expected)
                    if name not in expected and DERIVED.fullmatch(name):
                        continue
                    if name in found:
                        raise ModelError(f"{path}: {name} is in another file too")
                    tensor = shard.get_slice(stored)
                    _check_shape(path, name, tuple(tensor.get_shape()), expected)
                    if tensor.get_dtype() not in DTYPES:
                        kinds = ", ".join(DTYPES)
                        raise ModelError(f"{path}: {name} is {tensor.get_dtype()}, only {kinds} can be read")
                    found[name], places[name] = tensor.get_dtype(), (path, stored)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path} cannot be read: {error}") from None
    missing = [name for name in shapes if name not in found]
    if missing:
        raise ModelError(f"{directory} lacks {some(missing)}")
    if tied and found.pop(head, None) and not _equal(*places[head], *places[embedding]):
        raise ModelError(f"{places[head][0]}: {head} is not equal to {embedding}, but config.json ties them")
    return found


def _in_full(stored: str, expected: Container[str]) -> str:
    """The name of a tensor in `NAMES`: some files leave out the prefix of the network within its head's class."""
    return stored if stored in expected or PREFIX + stored not in expected else PREFIX + stored


def _equal(path: Path, name: str, other_path: Path, other_name: str) -> bool:
    try:
        with safe_open(path, framework="pt") as shard, safe_open(other_path, framework="pt") as other_shard:
            one, other = shard.get_slice(name), other_shard.get_slice(other_name)
            return all(
                torch.equal(one[row : row + ROWS].float(), other[row : row + ROWS].float())
                for row in range(0, one.get_shape()[0], ROWS)
            )
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None


def load_weights(
    directory: Path, parts: Mapping[str, TensorPlace], report: Callable[[int, int], None] = lambda done, total: None
) -> None:
    """Copy each tensor to its place. Besides the weights, memory holds one tensor at a time. `report` hears how many
    are in place, of how many.

    The directory has passed `check_weights`. Raises `ModelError` if a file can no longer be read.
    """
    done = 0
    report(done, len(parts))
    for path in _files(directory):
        try:
            with safe_open(path, framework="pt") as shard:
                for stored in shard.keys():  # noqa: SIM118 - not a mapping
                    if (part := parts.get(_in_full(stored, parts))) is None:
                        continue
                    part.put(shard.get_tensor(stored))
                    done += 1
                    report(done, len(parts))
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path} cannot be read: {error}") from None


def random_tensor(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """A matrix that keeps the scale of its input, or ones."""
    device = generator.device
    if len(shape) == 1:
        return torch.ones(shape, device=device)
    scale: float = shape[-1] ** -0.5
    return torch.randn(shape, generator=generator, device=device) * scale


def fill_randomly(config: ModelConfig, parts: Mapping[str, TensorPlace], device: torch.device) -> None:
    """Random weights of a plausible scale, made on the device: the same for the same configuration, however many
    devices share them."""
    generator = torch.Generator(device).manual_seed(0)
    for name, shape in tensor_shapes(config).items():
        parts[name].put(random_tensor(shape, generator))


def absent_files(directory: Path, weights: bool = True) -> list[str]:
    """Names of the files that every checkpoint needs, with or without its weights, and this one lacks. Raises
    `ModelError` for a broken index."""
    names = ("config.json", *(_shards(directory) if weights else ()))
    return [name for name in names if not (directory / name).exists()]


def _files(directory: Path) -> list[Path]:
    names = _shards(directory)
    missing = [name for name in names if not (directory / name).exists()]
    if missing == [SINGLE]:
        raise ModelError(f"{directory} has neither {SINGLE} nor {INDEX}: other formats cannot be read")
    if missing:
        raise ModelError(f"{directory} lacks {some(missing)}, named in {INDEX}")
    return [directory / name for name in names]


def _shards(directory: Path) -> list[str]:
    """Names of the files with the weights, which may be missing."""
    index = directory / INDEX
    if not index.exists():
        return [SINGLE]
    try:
        names = sorted({str(name) for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{index} cannot be read: {error!r}") from None
    outside = [name for name in names if PurePath(name).name != name]
    if outside:
        raise ModelError(f"{index} names {some(outside)}, which is no file beside it")
    return names


def _check_shape(path: Path, name: str, shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> None:
    if name not in shapes:
        raise ModelError(f"{path} has an unexpected tensor {name}")
    if shape != shapes[name]:
        raise ModelError(f"{path}: {name} is {list(shape)}, config.json says {list(shapes[name])}")


def some(names: list[str]) -> str:
    """The first of the names, for a message."""
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")
