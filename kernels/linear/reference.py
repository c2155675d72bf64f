"""Matrix products in torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ..common.checks import FLOATS, expect
from ..common.types import FP8, Fp8Matrix, Matrix

# Below this many rows the CPU's matrix product takes another summation order, and a request alone would differ in
# the last bit from the same request batched with others.
MIN_ROWS = 16

FP8_MAX = 448.0
LEAST_SCALE = 1e-12  # of a row of zeros


def linear(x: Tensor, weight: Matrix, fixed: bool = False) -> Tensor:
    """x [T, in] times weight [out, in], transposed: [T, out]. `fixed`: a row's bits do not depend on the other rows.

    On a CPU a row's float32 bits never do. An FP8 weight is multiplied with x quantized row by row, and is not `fixed`.
    """
    if isinstance(weight, Fp8Matrix):
        return fp8_linear(x, weight)
    return fixed_linear(x, weight) if fixed else _padded_linear(x, weight)


def _padded_linear(x: Tensor, weight: Tensor) -> Tensor:
    tokens = x.shape[0]
    if tokens >= MIN_ROWS:
        return F.linear(x, weight)
    return F.linear(F.pad(x, (0, 0, 0, MIN_ROWS - tokens)), weight)[:tokens]


def fixed_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, in] times weight [out, in], transposed: [T, out]. Each number is summed in float32 in one order."""
    return _padded_linear(x.float(), weight.float()).to(x.dtype)


def fp8_linear(x: Tensor, weight: Fp8Matrix) -> Tensor:
    """x [T, in], quantized row by row, times an FP8 weight, transposed: [T, out] in x's type."""
    expect("x", x, ("T", weight.values.shape[1]), FLOATS, contiguous=False)
    values, scales = quantize_rows(x)
    return (_padded_linear(values.float(), weight.values.float()) * scales[:, None] * weight.scales).to(x.dtype)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, n] as (values [T, n] float8_e4m3fn, scales [T] float32): the largest of a row becomes FP8's largest."""
    expect("x", x, ("T", "n"), FLOATS, contiguous=False)
    wide = x.float()
    scales = (wide.abs().amax(-1) / FP8_MAX).clamp_min(LEAST_SCALE)
    return (wide / scales[:, None]).clamp(-FP8_MAX, FP8_MAX).to(FP8), scales
