"""Matrix products in the forms that a network can ask for: the library's, ones of fixed order, and products in FP8.

These are the torch versions; `ops.linear` chooses. T tokens; a weight is [out, in].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import FLOATS, expect

# Below this many rows the CPU's matrix product takes another summation order, and a request alone would differ in
# the last bit from the same request in a crowd.
MIN_ROWS = 16

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
LEAST_SCALE = 1e-12  # of a row of zeros


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """A weight in FP8: `values` [out, in] float8_e4m3fn times `scales` [out] float32, one for each output channel."""

    values: Tensor
    scales: Tensor

    def __post_init__(self) -> None:
        expect("values", self.values, ("out", "in"), (FP8,))
        expect("scales", self.scales, (len(self.values),), (torch.float32,))

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scales.nbytes

    @classmethod
    def empty(cls, rows: int, columns: int, device: torch.device) -> Fp8Matrix:
        """Raises `ValueError` for sizes that the product cannot take."""
        if rows % 16 or columns % 16:
            raise ValueError(f"FP8 products take sizes that are multiples of 16, not [{rows}, {columns}]")
        return cls(
            torch.empty((rows, columns), dtype=FP8, device=device),
            torch.empty(rows, dtype=torch.float32, device=device),
        )


Matrix = Tensor | Fp8Matrix


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, in] times weight [out, in], transposed: [T, out]. A row's float32 bits do not depend on the other rows."""
    tokens = x.shape[0]
    if tokens >= MIN_ROWS:
        return F.linear(x, weight)
    return F.linear(F.pad(x, (0, 0, 0, MIN_ROWS - tokens)), weight)[:tokens]


def fixed_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, in] times weight [out, in], transposed: [T, out]. Each number is summed in float32 in one order."""
    return linear(x.float(), weight.float()).to(x.dtype)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, n] as (values [T, n] float8_e4m3fn, scales [T] float32): the largest of a row becomes FP8's largest."""
    expect("x", x, ("T", "n"), FLOATS, contiguous=False)
    wide = x.float()
    scales = (wide.abs().amax(-1) / FP8_MAX).clamp_min(LEAST_SCALE)
    return (wide / scales[:, None]).clamp(-FP8_MAX, FP8_MAX).to(FP8), scales


def fp8_linear(x: Tensor, weight: Fp8Matrix) -> Tensor:
    """x [T, in], quantized row by row, times an FP8 weight, transposed: [T, out] in x's type."""
    expect("x", x, ("T", weight.values.shape[1]), FLOATS, contiguous=False)
    values, scales = quantize_rows(x)
    return (linear(values.float(), weight.values.float()) * scales[:, None] * weight.scales).to(x.dtype)
