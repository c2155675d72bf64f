"""A report on a checkpoint's weights, from its configuration and its files' headers alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from ..exec.memory import weights_bytes
from ..kv_cache import KvPages
from ..numerics import Numerics
from .config import ModelConfig
from .families import tensor_shapes
from .finite import require_finite
from .weights import as_stored, check_matrices, check_weights

POSITIONS = 1000  # whose keys and values are counted
PLAIN = {"float32": Numerics(torch.float32), "bfloat16": Numerics(torch.bfloat16)}
CACHES = PLAIN | {"fp8": Numerics(torch.bfloat16, fp8_cache=True)}
KEPT = PLAIN | {
    "fp8": Numerics(torch.bfloat16, fp8=True),
    "int4": Numerics(torch.bfloat16, int4=True),
}


@dataclass(frozen=True, slots=True)
class WeightReport:
    """`stored`: parameters of each type on disk; `stored_bytes`: of all weights there. `quantization`: the format of
    `quantized` matrices, None without any. `weights_bytes`: memory of the weights by type (None: not possible).
    `cache_bytes`: memory of the keys and values of `POSITIONS` positions, by type."""

    parameters: int
    stored: Mapping[str, int]
    stored_bytes: int
    quantization: str | None
    quantized: int
    weights_bytes: Mapping[str, int | None]
    cache_bytes: Mapping[str, int]


def count_parameters(config: ModelConfig) -> int:
    """Parameters of the whole network; an embedding that is the head too counts once."""
    return sum(prod(shape) for shape in tensor_shapes(config).values())


def weight_report(directory: Path, config: ModelConfig, *, check: bool = False) -> WeightReport:
    """Takes no memory for weights. Raises `ModelError` for weights that cannot be loaded, and with `check`, which reads
    all of them, for numbers that are not finite or contradict the configuration."""
    weights, stored = check_weights(directory, config), Counter[str]()
    if check:
        require_finite(
            {name: weights.headers[name].path for names in weights.tensors.values() for name in names.values()}
        )
        check_matrices(weights)
    config = as_stored(config, weights)
    for name in weights.tensors:
        stored[weights.dtype(name)] += prod(weights.shapes[name])
    return WeightReport(
        parameters=count_parameters(config),
        stored=dict(stored),
        stored_bytes=weights.stored_bytes,
        quantization=str(config.quantization) if weights.quantized else None,
        quantized=len(weights.quantized),
        weights_bytes={name: _kept(config, numerics) for name, numerics in KEPT.items()},
        cache_bytes={name: KvPages.page_bytes(config, POSITIONS, numerics) for name, numerics in CACHES.items()},
    )


def _kept(config: ModelConfig, numerics: Numerics) -> int | None:
    try:
        return weights_bytes(config, numerics)
    except ValueError:  # sizes that these products cannot take
        return None
