"""Counter-based noise: a function of (seed, position, step) and an id, whatever else is drawn in the batch.

The hash is MurmurHash3's 32-bit finalizer, on int64 that holds 32 bits. `triton_noise` has the same for kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .types import Draws

POSITION = 0xFFFFFFFF  # the id of a position's own noise: no token has it


def token_noise(draws: Draws, vocabulary: int) -> Tensor:
    """Gumbel noise (Gumbel, 1954) of every token at each position: [N, V] float32."""
    return gumbel(uniform(_bits(_keys(draws)[:, None], torch.arange(vocabulary, device=draws.seeds.device))))


def position_noise(draws: Draws) -> Tensor:
    """One number in (0, 1) for each position, independent of its tokens' noise: [N] float32."""
    return uniform(_bits(_keys(draws), POSITION))


def uniform(bits: Tensor) -> Tensor:
    """A number in (0, 1) made of 23 of 32 random bits: with one more the largest would round to 1."""
    return ((bits >> 9).float() + 0.5) / (1 << 23)


def gumbel(uniform: Tensor) -> Tensor:
    return -(-uniform.log()).log()


def _keys(draws: Draws) -> Tensor:
    key = _mix(draws.seeds & 0xFFFFFFFF)
    for part in (draws.seeds >> 32, draws.positions, draws.steps):
        key = _mix(key ^ (part & 0xFFFFFFFF))
    return key


def _bits(keys: Tensor, ids: Tensor | int) -> Tensor:
    return _mix((keys + ids * 0x9E3779B9) & 0xFFFFFFFF)


def _mix(x: Tensor) -> Tensor:
    x = x + 0x9E3779B9 & 0xFFFFFFFF
    x = (x ^ x >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    x = (x ^ x >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return x ^ x >> 16
