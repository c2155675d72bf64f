"""Checks the arguments of a kernel, which would read a tensor of the wrong shape as other memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def expect(
    name: str, tensor: Tensor, shape: Sequence[int | str], dtypes: Sequence[torch.dtype], contiguous: bool = True
) -> None:
    """Raise `ValueError` unless `tensor` has one of `dtypes` and the shape, in which a word stands for any size."""
    given = tuple(tensor.shape)
    fits = len(given) == len(shape) and all(
        isinstance(want, str) or want == got for want, got in zip(shape, given, strict=True)
    )
    if not fits or tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        expected = f"[{', '.join(str(size) for size in shape)}] {wanted}"
        raise ValueError(f"{name} must be {expected}, not {list(given)} {str(tensor.dtype).removeprefix('torch.')}")
    if contiguous and not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, not with strides {list(tensor.stride())}")


def expect_each(shape: Sequence[int | str], dtype: torch.dtype, **tensors: Tensor) -> None:
    """`expect` of several tensors, by name, of one shape and type."""
    for name, tensor in tensors.items():
        expect(name, tensor, shape, (dtype,))


def expect_logits(logits: Tensor) -> None:
    """Raise `ValueError` unless `logits` is [N, V] with contiguous rows, which may lie apart."""
    expect("logits", logits, ("N", "V"), FLOATS, contiguous=False)
    if logits.stride(1) != 1:
        raise ValueError(f"rows of logits must be contiguous, not with strides {list(logits.stride())}")
