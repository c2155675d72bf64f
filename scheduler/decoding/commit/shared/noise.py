"""Numbers that the host draws: a function of (seed, position, step) and a purpose, whatever else is in the step.

Rules and canvases of random tokens use them. The hash is that of `kernels/common/noise.py`, MurmurHash3's 32-bit
finalizer.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ....contract import Doubles
from ..segments import Longs

Words = npt.NDArray[np.uint64]
LOW = np.uint64(0xFFFFFFFF)
ACCEPT, RESAMPLE = np.uint64(0xFFFFFFFE), np.uint64(0xFFFFFFFD)  # purposes: no token has such an id


def uniform(seed: int, positions: Longs, step: int, purpose: np.uint64) -> Doubles:
    """A number in (0, 1) for each of `positions` [n]."""
    return ((hashed(seed, positions, step, purpose) >> np.uint64(9)).astype(np.float64) + 0.5) / (1 << 23)


def hashed(seed: int, positions: Longs, step: int, purpose: np.uint64) -> Words:
    """32 random bits for each of `positions` [n]."""
    key = _mixed(np.full(len(positions), seed & 0xFFFFFFFF, np.uint64))
    for part in (np.uint64(seed >> 32 & 0xFFFFFFFF), positions.astype(np.uint64), np.uint64(step)):
        key = _mixed(key ^ (part & LOW))
    return _mixed(key + purpose * np.uint64(0x9E3779B9) & LOW)


def _mixed(x: Words) -> Words:
    x = x + np.uint64(0x9E3779B9) & LOW
    x = (x ^ x >> np.uint64(16)) * np.uint64(0x85EBCA6B) & LOW
    x = (x ^ x >> np.uint64(13)) * np.uint64(0xC2B2AE35) & LOW
    return x ^ x >> np.uint64(16)
