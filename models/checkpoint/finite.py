"""Finds NaN and infinity in the files of a checkpoint: one of them can make every answer senseless."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .config import ModelError

FP8_NAN = 0x7F  # of e4m3, without the sign


def require_finite(paths: Mapping[str, Path]) -> None:
    """Raises `ModelError` with the first of these tensors, by the file of each, that has a number which is not finite.
    Memory holds one at a time."""
    files = dict[Path, list[str]]()
    for name, path in paths.items():
        files.setdefault(path, []).append(name)
    for path, names in files.items():
        try:
            with safe_open(path, framework="pt") as shard:
                for name in names:
                    if not _is_finite(shard.get_tensor(name)):
                        raise ModelError(f"{path}: {name} has numbers that are not finite")
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path} cannot be read: {error}") from None


def _is_finite(tensor: Tensor) -> bool:
    if not tensor.is_floating_point():
        return True
    if tensor.itemsize == 1:
        return not bool((tensor.view(torch.uint8) & FP8_NAN == FP8_NAN).any())
    # A sum reads them once, and is finite for all that a network can have; `isfinite` takes twenty times as long.
    return bool(tensor.sum(dtype=torch.float32).isfinite()) or bool(tensor.isfinite().all())
