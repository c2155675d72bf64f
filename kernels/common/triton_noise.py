"""The noise of `noise` as functions of a Triton kernel."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mixed(x):
    """MurmurHash3's 32-bit finalizer, on uint32."""
    x = x + 0x9E3779B9
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def _low(x):
    return (x & 0xFFFFFFFF).to(tl.uint32)


@triton.jit
def counter_key(seed, position, step):
    """The start of all noise of a position in a step, from int64 numbers."""
    key = mixed(mixed(_low(seed)) ^ _low(seed >> 32))
    return mixed(mixed(key ^ _low(position)) ^ _low(step))
