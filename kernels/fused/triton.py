"""Products of few rows with the small operation after them; of more rows, both one after the other.

The library's products of few rows read their weight more slowly than the memory gives it, and leave it idle between
kernels. The streamed ones (`linear.triton_streamed`) do not, and what follows adds up their parts.
"""

from __future__ import annotations

from torch import Tensor

from ..common.types import PLAIN, GroupedMatrix, Matrix, PagedHeads, QkNorm
from ..elementwise.triton import rope_write_kv_of, swiglu_of
from ..elementwise.triton_norms import add_rms_norm_of
from ..linear.triton import linear
from ..linear.triton_grouped import grouped_parts
from ..linear.triton_streamed import streamed, streams


def linear_swiglu(x: Tensor, gate_up: Matrix, fixed: bool = False) -> Tensor:
    if streams(gate_up, x, fixed):
        return streamed(x, gate_up, gated=True)[0]
    return swiglu_of(product_parts(x, gate_up, fixed), x.dtype)


def linear_add_rms_norm(
    x: Tensor, weight: Matrix, residual: Tensor, norm: Tensor, eps: float, fixed: bool = False
) -> tuple[Tensor, Tensor]:
    return add_rms_norm_of(product_parts(x, weight, fixed), residual, norm, eps)


def linear_rope_write_kv(
    x: Tensor,
    weight: Matrix,
    cos: Tensor,
    sin: Tensor,
    keys: PagedHeads,
    values: PagedHeads,
    places: Tensor,
    qk_norm: QkNorm = PLAIN,
    fixed: bool = False,
) -> Tensor:
    parts = product_parts(x, weight, fixed)
    heads = parts.view(*parts.shape[:2], -1, keys.shape[3])
    return rope_write_kv_of(heads, cos, sin, keys, values, places, qk_norm, x.dtype)


def product_parts(x: Tensor, weight: Matrix, fixed: bool) -> Tensor:
    """The product in parts [S, T, out] that add up to it."""
    if streams(weight, x, fixed):
        return streamed(x, weight)
    if isinstance(weight, GroupedMatrix):
        return grouped_parts(x, weight, fixed)
    return linear(x, weight, fixed)[None]
