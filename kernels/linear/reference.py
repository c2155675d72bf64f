"""Matrix products in torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.checks import FLOATS, expect
from ..common.types import FP8, INT4_PER_WORD, Fp8Matrix, GroupedMatrix, Matrix

# Below this many rows the CPU's matrix product takes another summation order, and a request alone would differ in
# the last bit from the same request batched with others.
MIN_ROWS = 16

FP8_MAX = 448.0
INT4_MAX = 15
SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)  # of a group's range: fewer steps are wasted on its outermost numbers
LEAST_SCALE = 1e-12  # of a row of zeros


def linear(x: Tensor, weight: Matrix, fixed: bool = False) -> Tensor:
    """x [T, in] times weight [out, in], transposed: [T, out]. `fixed`: a row's bits do not depend on the other rows.

    On a CPU a row's float32 bits never do. An FP8 weight is multiplied with x quantized row by row; one with a scale
    for each row is not `fixed`. 4-bit numbers less their zeros are multiplied with x as it is, and their scales with
    the sums of a group.
    """
    if isinstance(weight, Fp8Matrix):
        return fp8_linear(x, weight)
    if isinstance(weight, GroupedMatrix):
        return _grouped_linear(x, weight)
    return fixed_linear(x, weight) if fixed else _padded_linear(x, weight)


def _grouped_linear(x: Tensor, weight: GroupedMatrix) -> Tensor:
    if weight.int4:
        return _padded_linear(x.float(), dequantize(weight)).to(x.dtype)
    values, scales = quantize_rows(x)
    return (_padded_linear(values.float(), dequantize(weight)) * scales[:, None]).to(x.dtype)


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


def dequantize(weight: Matrix) -> Tensor:
    """A weight [out, in] in float32; in torch on every device."""
    if isinstance(weight, Fp8Matrix):
        return weight.values.float() * weight.scales[:, None]
    if not isinstance(weight, GroupedMatrix):
        return weight.float()
    scales = weight.scales.repeat_interleave(weight.group, 1)[:, : weight.shape[1]]
    if not weight.int4:
        return weight.values.float() * scales
    return (unpack_int4(weight.values).float() - scales[..., 1]) * scales[..., 0]


def quantize_groups(weight: Tensor, group: int) -> GroupedMatrix:
    """A weight [out, in] in int4: the numbers of `group` columns are spread evenly from the least to the largest, or
    over a share of that range, beyond which they are cut: of `SHARES` the one with the least squared error. In torch on
    every device."""
    rows, columns = weight.shape
    grouped = weight.float().view(rows, columns // group, group)
    least, most = grouped.amin(-1, keepdim=True).clamp_max(0), grouped.amax(-1, keepdim=True).clamp_min(0)
    numbers, scales = torch.empty_like(grouped), grouped.new_empty((*grouped.shape[:2], 2))
    errors = torch.full_like(least, torch.inf)
    for share in SHARES:
        scale = (share * (most - least) / INT4_MAX).clamp_min(LEAST_SCALE)
        zero = (-share * least / scale).round()
        found = ((grouped / scale).round() + zero).clamp_(0, INT4_MAX)
        error = (found - zero).mul_(scale).sub_(grouped).square_().sum(-1, keepdim=True)
        better = ~(error >= errors)  # what is no number stays none
        numbers = torch.where(better, found, numbers)
        scales = torch.where(better, torch.cat((scale, zero), -1), scales)
        errors = torch.where(better, error, errors)
    return GroupedMatrix(pack_int4(numbers.flatten(1)), scales, group)


def pack_int4(numbers: Tensor) -> Tensor:
    """numbers [out, in] of 4 bits -> words [out, in / 8] int32. Bits 4n to 4n + 3 and 16 + 4n to 19 + 4n of a word are
    its columns 2n and 2n + 1."""
    pairs = numbers.to(torch.int32).contiguous().view(len(numbers), -1, INT4_PER_WORD // 2, 2)
    words = torch.zeros_like(pairs[:, :, 0, 0])
    for number, pair in enumerate(pairs.unbind(2)):
        words |= pair[..., 0] << 4 * number | pair[..., 1] << 16 + 4 * number
    return words


def unpack_int4(words: Tensor) -> Tensor:
    """The inverse of `pack_int4`, as uint8."""
    shifts = [shift + half for shift in range(0, 16, 4) for half in (0, 16)]
    return torch.stack([words >> shift & 15 for shift in shifts], -1).to(torch.uint8).flatten(1)
