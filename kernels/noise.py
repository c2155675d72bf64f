"""Noise that a counter makes: it depends on (seed, position, step) and an id alone, never on what else is drawn.

The hash is MurmurHash3's 32-bit finalizer, on int64 holding 32 bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .prediction import Draws

POSITION = 0xFFFFFFFF  # an id for noise of the position itself: no token has it


def token_noise(seeds: Tensor, positions: Tensor, steps: Tensor, vocabulary: int) -> Tensor:
    """Gumbel noise (Gumbel, 1954) of every token at each position: seeds, positions, steps [N] int64 -> [N, V]."""
    ids = torch.arange(vocabulary, device=seeds.device)
    return gumbel(uniform(_bits(_keys(seeds, positions, steps)[:, None], ids)))


def position_noise(draws: Draws) -> Tensor:
    """One number in (0, 1) for each position, independent of its tokens' noise: [N] float32."""
    return uniform(_bits(_keys(draws.seeds, draws.positions, draws.steps), POSITION))


def uniform(bits: Tensor) -> Tensor:
    """A number in (0, 1) of 32 random bits. 23 of them: with one more the largest would round to 1."""
    return ((bits >> 9).float() + 0.5) / (1 << 23)


def gumbel(uniform: Tensor) -> Tensor:
    return -(-uniform.log()).log()


def _keys(seeds: Tensor, positions: Tensor, steps: Tensor) -> Tensor:
    key = _mix(seeds & 0xFFFFFFFF)
    for part in (seeds >> 32, positions, steps):
        key = _mix(key ^ (part & 0xFFFFFFFF))
    return key


def _bits(keys: Tensor, ids: Tensor | int) -> Tensor:
    return _mix((keys + ids * 0x9E3779B9) & 0xFFFFFFFF)


def _mix(x: Tensor) -> Tensor:
    x = x + 0x9E3779B9 & 0xFFFFFFFF
    x = (x ^ x >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    x = (x ^ x >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return x ^ x >> 16
