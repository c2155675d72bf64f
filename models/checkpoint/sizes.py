"""Refuses sizes that no network has, before anything is made of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .config import ModelConfig

# What no model comes near: more would fill the memory before it is found not to match the weights.
MOST = {
    "dim": 2**20,
    "layers": 2**10,
    "heads": 2**12,
    "kv_heads": 2**12,
    "ff_dim": 2**22,
    "vocab_size": 2**24,
    "max_model_len": 2**24,
}
MOST_EXPERTS = 2**10


def check_sizes(config: ModelConfig) -> None:
    """Raises `ValueError` with the size that cannot be."""
    for name, most in MOST.items():
        if not 1 <= getattr(config, name) <= most:
            raise ValueError(f"{name} is {getattr(config, name)}, not from 1 to {most}")
    if config.experts is not None and config.experts.count > MOST_EXPERTS:
        raise ValueError(f"{config.experts.count} experts are more than {MOST_EXPERTS}")
    for name in ("norm_eps", "rope_theta"):
        if not 0 < getattr(config, name) < math.inf:
            raise ValueError(f"{name} is {getattr(config, name)}, not a positive number")
