"""Programmatic dependent launch: a kernel's programs start while the kernel before ends, and wait for its results.

Each kernel lets the next one start at once, and waits before it touches memory that another kernel writes. The kernel
before has then ended, and had waited for its own predecessor, so a whole chain keeps its order. A kernel of a library
takes no part: it starts after the end of the one before, and the one after waits for its end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

FIRST_CAPABILITY = 9  # major number of the first GPUs that can


def chained(tensor: Tensor) -> dict[str, bool]:
    """The arguments of a launch on the device of `tensor`, for a kernel that calls `await_previous`."""
    if tensor.is_cuda and torch.cuda.get_device_capability(tensor.device)[0] >= FIRST_CAPABILITY:
        return {"CHAINED": True, "launch_pdl": True}
    return {"CHAINED": False}


@triton.jit
def await_previous(CHAINED: tl.constexpr):
    """The first statement of a kernel that has nothing to do before its predecessor has ended."""
    if CHAINED:
        gdc_launch_dependents()
        gdc_wait()
