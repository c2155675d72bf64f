"""Writes to the canvases what the host has decided itself, in one launch."""

# ruff: noqa: N803 - what Triton compiles in is written in capitals
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..checks import expect

BLOCK = 256  # positions of a program


def tell(canvases: Tensor, slots: Tensor, positions: Tensor, tokens: Tensor) -> None:
    """Writes `tokens` [T] int32 to the canvases [slots, length] int64 at (slots, positions) [T] int64; nothing where a
    token is below 0."""
    expect("canvases", canvases, ("slots", "length"), (torch.int64,))
    expect("tokens", tokens, ("T",), (torch.int32,))
    for name, tensor in (("slots", slots), ("positions", positions)):
        expect(name, tensor, (len(tokens),), (torch.int64,))
    if len(tokens):
        _tell[(triton.cdiv(len(tokens), BLOCK),)](
            canvases, slots, positions, tokens, len(tokens), canvases.stride(0), BLOCK=BLOCK
        )


@triton.jit(do_not_specialize=["count"])
def _tell(canvases_ptr, slots_ptr, positions_ptr, tokens_ptr, count, stride, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(tokens_ptr + at, mask=at < count, other=-1)
    told = token >= 0
    place = tl.load(slots_ptr + at, mask=told, other=0) * stride + tl.load(positions_ptr + at, mask=told, other=0)
    tl.store(canvases_ptr + place, token.to(tl.int64), mask=told)
