"""Rows as FP8 numbers and their scales, in one reading."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common.checks import FLOATS, expect
from ..common.triton_launch import await_previous, chained
from ..common.types import FP8
from .reference import FP8_MAX, LEAST_SCALE


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    expect("x", x, ("T", "n"), FLOATS)
    tokens, width = x.shape
    values = torch.empty(x.shape, dtype=FP8, device=x.device)
    scales = torch.empty(tokens, dtype=torch.float32, device=x.device)
    if tokens:
        block = triton.next_power_of_2(width)
        warps = min(8, max(1, block // 512))
        _quantize[(tokens,)](
            x, values, scales, WIDTH=width, BLOCK=block, LEAST=LEAST_SCALE, MOST=FP8_MAX, num_warps=warps,
            **chained(values),
        )  # fmt: skip
    return values, scales


@triton.jit
def _quantize(
    x_ptr, values_ptr, scales_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEAST: tl.constexpr, MOST: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    await_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * WIDTH + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.math.div_rn(tl.max(tl.abs(x), axis=0), MOST), LEAST)
    # Maxima ignore NaN; a row with one must not come out as numbers.
    scale = tl.where(tl.max((x != x).to(tl.int32), axis=0) > 0, float("nan"), scale)
    scaled = tl.minimum(tl.maximum(tl.math.div_rn(x, tl.zeros_like(x) + scale), -MOST), MOST)
    tl.store(values_ptr + row * WIDTH + column, scaled.to(tl.float8e4nv), mask=column < WIDTH)
    tl.store(scales_ptr + row, scale)
