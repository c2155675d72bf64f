"""The number format of a network: one choice for weights, caches and products."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Numerics:
    """`dtype` of weights and caches; `fp8`, `int4`: the matrices of the blocks in FP8 or int4; `fixed`: sums in an
    order that does not depend on the batch, so that an answer has the same bits alone and batched with others;
    `fp8_cache`: keys and values in FP8."""

    dtype: torch.dtype
    fp8: bool = False
    fixed: bool = False
    int4: bool = False
    fp8_cache: bool = False
