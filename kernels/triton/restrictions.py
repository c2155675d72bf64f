"""Takes all probability from the tokens that a grammar does not allow, in place, in a launch of fixed size."""

# ruff: noqa: N803 - what Triton compiles in is written in capitals
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..checks import FLOATS, expect

BLOCK = 1024  # tokens of a program


def restrict(logits: Tensor, places: Tensor, words: Tensor) -> None:
    """Sets logits [N, V] of tokens that may not come to minus infinity, in place.

    places [R] int32: a row of logits each, below 0: none; words [R, W] int32: token t may come at places[r] if bit
    t % 32 of words[r, t // 32] is set. W * 32 is V at least.
    """
    expect("logits", logits, ("N", "V"), FLOATS, contiguous=False)
    if logits.stride(1) != 1:
        raise ValueError("rows of logits are read as contiguous")
    expect("places", places, ("R",), (torch.int32,))
    expect("words", words, (len(places), "W"), (torch.int32,))
    vocabulary = logits.shape[1]
    if words.shape[1] * 32 < vocabulary:
        raise ValueError(f"{words.shape[1]} words are no mask of {vocabulary} tokens")
    if len(places):
        grid = (len(places), triton.cdiv(vocabulary, BLOCK))
        _restrict[grid](logits, places, words, logits.stride(0), vocabulary, words.shape[1], BLOCK=BLOCK)


@triton.jit(do_not_specialize=["stride", "vocabulary", "width"])
def _restrict(logits_ptr, places_ptr, words_ptr, stride, vocabulary, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(places_ptr + row).to(tl.int64)
    if place >= 0:
        token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = token < vocabulary
        word = tl.load(words_ptr + row * width + token // 32, mask=inside, other=-1)
        forbidden = (word >> (token % 32) & 1) == 0
        tl.store(logits_ptr + place * stride + token, float("-inf"), mask=inside & forbidden)
