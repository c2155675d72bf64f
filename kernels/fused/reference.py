"""Products and the small operations after them, one after the other."""

from __future__ import annotations

from torch import Tensor

from ..common.types import PLAIN, Matrix, PagedHeads, QkNorm
from ..elementwise.reference import add_rms_norm, rope_write_kv, swiglu
from ..linear.reference import linear


def linear_swiglu(x: Tensor, gate_up: Matrix, fixed: bool = False) -> Tensor:
    """`swiglu` of the product of x [T, in] and gate_up [2 * ff, in]: [T, ff]. `fixed`: as in `linear`."""
    return swiglu(linear(x, gate_up, fixed))


def linear_add_rms_norm(
    x: Tensor, weight: Matrix, residual: Tensor, norm: Tensor, eps: float, fixed: bool = False
) -> tuple[Tensor, Tensor]:
    """`add_rms_norm` of the product of x [T, in] and weight [dim, in], of residual [T, dim] and norm [dim]."""
    return add_rms_norm(linear(x, weight, fixed), residual, norm, eps)


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
    """`rope_write_kv` of the product of x [T, in] and weight [(H + 2 * G) * D, in]: queries [T, H, D]."""
    qkv = linear(x, weight, fixed).view(len(x), -1, keys.shape[3])
    return rope_write_kv(qkv, cos, sin, keys, values, places, qk_norm)
