"""Says what a kernel was given instead of what it reads: a wrong shape would otherwise be read as other memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def expect(
    name: str,
    tensor: Tensor,
    shape: Sequence[int | str],
    dtypes: Sequence[torch.dtype],
    contiguous: bool = True,
) -> None:
    """Raises `ValueError` unless `tensor` has one of `dtypes` and the shape, in which a word stands for any size."""
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
