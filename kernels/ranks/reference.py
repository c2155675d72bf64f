"""Sums over devices in torch, once all others have written their part."""

from __future__ import annotations

from torch import Tensor

from ..common.types import Mailbox, Matrix
from ..elementwise.reference import add_rms_norm
from ..linear.reference import linear


def linear_sum_add_rms_norm(
    x: Tensor,
    weight: Matrix,
    residual: Tensor,
    norm: Tensor,
    eps: float,
    mailbox: Mailbox,
    turn: int,
    fixed: bool = False,
) -> tuple[Tensor, Tensor]:
    """`sum_add_rms_norm` of the product of x [T, in] and weight [dim, in]. `fixed`: as in `linear`."""
    return sum_add_rms_norm(linear(x, weight, fixed)[None], residual, norm, eps, mailbox, turn)


def sum_add_rms_norm(
    parts: Tensor, residual: Tensor, weight: Tensor, eps: float, mailbox: Mailbox, turn: int
) -> tuple[Tensor, Tensor]:
    """`add_rms_norm` of the sum over all ranks, of residual [T, dim] and weight [dim].

    parts [S, T, dim] add up to this rank's part, which is rounded to the type of the residual. The ranks' parts are
    added in float32, in the order of the ranks. `turn`: the half of the mailbox, which alternates from call to call.
    """
    own = parts[0] if len(parts) == 1 else parts.sum(0)
    mailbox.buffers[mailbox.rank][turn, : len(residual)] = own
    total, *others = [buffer[turn, : len(residual)].float() for buffer in mailbox.buffers]
    for other in others:
        total = total + other
    return add_rms_norm(total.to(residual.dtype), residual, weight, eps)
