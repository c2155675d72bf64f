"""What a measured kernel is: at which size, against which library calls, and how much any version has to do.

`block_cases`, `product_cases`, `attention_cases` and `token_cases` each list theirs in a function `cases`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

DTYPE = torch.bfloat16
ITEM = DTYPE.itemsize
PAGE_SIZE = 64
TOKENS = (32, 256, 2048)

Inputs = list[tuple[Any, ...]]


class Shape(NamedTuple):
    """What a kernel sees of a network."""

    name: str
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    ff_dim: int
    vocabulary: int


LLADA = Shape("llada-8b", 4096, 32, 32, 128, 12288, 126464)
DREAM = Shape("dream-7b", 3584, 28, 4, 128, 18944, 152064)
SMALL = Shape("small", 256, 4, 2, 64, 768, 1408)


class Work(NamedTuple):
    """Each input read once, each output written once; operations of the matrix units, since others bound nothing."""

    moved_bytes: int
    operations: int = 0

    def bound_ms(self, bytes_per_s: float, operations_per_s: float) -> float:
        """No version is faster on a card with these peaks."""
        return 1e3 * max(self.moved_bytes / bytes_per_s, self.operations / operations_per_s)


class Library(NamedTuple):
    """A competitor: `build` returns its call, and may raise whatever says that it does not run here."""

    name: str
    build: Callable[[], Callable[..., object]]
    graph: bool = True  # False: it waits for the device, and is timed as launched


class Case(NamedTuple):
    """All calls take one of the sets of arguments that `inputs` draws. `ours` and `twin` return all that they compute
    or write: tensors, alone or in a tuple."""

    kernel: str
    load: str
    work: Work
    inputs: Callable[[torch.device, int], Inputs]  # so many sets
    ours: Callable[..., Any]
    twin: Callable[..., Any]
    libraries: Sequence[Library]
    twin_graph: bool = True  # False: the twin waits for the device


def eager(name: str, call: Callable[..., object], graph: bool = True) -> Library:
    return Library(name, lambda: call, graph)


def compiled(call: Callable[..., object]) -> Library:
    return Library("torch.compile", lambda: torch.compile(call, dynamic=False))


def drawn(shape: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.randn(shape, device=device, dtype=DTYPE)
