"""Adds the biases of some requests to their logits, in place, in a launch whose grid does not depend on them."""

# ruff: noqa: N803 - what Triton compiles in is written in capitals
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..checks import FLOATS, expect

SHARE = 32  # programs of a bias, which take turns at its positions
BLOCK = 128  # entries at a time


def adjust(logits: Tensor, begins: Tensor, ends: Tensor, entry_starts: Tensor, ids: Tensor, deltas: Tensor) -> None:
    """Adds `deltas` to logits [N, V], in place: bias b to its tokens at its positions, in float32, then rounded.

    begins, ends [B] int32: positions `[begins[b], ends[b])` of bias b, which no other bias has; entry_starts [B + 1]
    int32: its entries among ids [E] int32, each once in a bias, and deltas [E] float32, where minus infinity bans.
    Biases may be empty, as padding is.
    """
    expect("logits", logits, ("N", "V"), FLOATS, contiguous=False)
    if logits.stride(1) != 1:
        raise ValueError("rows of logits are read as contiguous")
    for name, bounds in (("begins", begins), ("ends", ends)):
        expect(name, bounds, (len(begins),), (torch.int32,))
    expect("entry_starts", entry_starts, (len(begins) + 1,), (torch.int32,))
    expect("ids", ids, ("E",), (torch.int32,))
    expect("deltas", deltas, tuple(ids.shape), (torch.float32,))
    if len(begins):
        _adjust[(len(begins), SHARE)](
            logits, begins, ends, entry_starts, ids, deltas, logits.stride(0), SHARE=SHARE, BLOCK=BLOCK, num_warps=1
        )


@triton.jit(do_not_specialize=["stride"])
def _adjust(
    logits_ptr, begins_ptr, ends_ptr, starts_ptr, ids_ptr, deltas_ptr, stride, SHARE: tl.constexpr, BLOCK: tl.constexpr
):
    bias = tl.program_id(0)
    first, last = tl.load(starts_ptr + bias), tl.load(starts_ptr + bias + 1)
    begin, end = tl.load(begins_ptr + bias).to(tl.int64), tl.load(ends_ptr + bias).to(tl.int64)
    for row in range(begin + tl.program_id(1), end, SHARE):
        row_ptr = logits_ptr + row * stride
        for start in range(first, last, BLOCK):
            entry = start + tl.arange(0, BLOCK)
            inside = entry < last
            id_ = tl.load(ids_ptr + entry, mask=inside, other=0)
            delta = tl.load(deltas_ptr + entry, mask=inside, other=0.0)
            logit = tl.load(row_ptr + id_, mask=inside, other=0.0).to(tl.float32)
            tl.store(row_ptr + id_, (logit + delta).to(logits_ptr.dtype.element_ty), mask=inside)
