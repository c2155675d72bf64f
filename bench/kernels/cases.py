"""A measured kernel: its size, the library calls that it is compared with, and the work of any version.

Each module `*_cases` lists its cases in a function `cases`.
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
FEW = (16, 32, 64)  # a product reads its weight once, and waits for it

Inputs = list[tuple[Any, ...]]


class Shape(NamedTuple):
    """The sizes of a network that a kernel depends on."""

    name: str
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    ff_dim: int
    vocabulary: int


LLADA = Shape("llada-8b", 4096, 32, 32, 128, 12288, 126464)
DREAM = Shape("dream-7b", 3584, 28, 4, 128, 18944, 152064)
# Heads of the layers with a window.
DIFFUSION_GEMMA = Shape("diffusiongemma-26b", 2816, 16, 8, 256, 2112, 262144)
SMALL = Shape("small", 256, 4, 2, 64, 768, 1408)


class Peaks(NamedTuple):
    """The measured rates of a card: bytes that a copy reads and writes, bytes that a sum reads, operations of matrix
    products in bfloat16 and in FP8."""

    copy_bytes_per_s: float
    read_bytes_per_s: float
    matrix_operations_per_s: float
    fp8_operations_per_s: float

    @property
    def bytes_per_s(self) -> float:
        """The faster of copy and sum: a kernel may mostly read."""
        return max(self.copy_bytes_per_s, self.read_bytes_per_s)


class Workload(NamedTuple):
    """Bytes to move, each input and output once, and operations of the matrix units: no other operation is a limit."""

    moved_bytes: int
    operations: int = 0
    fp8: bool = False  # the operations are in FP8

    def bound_ms(self, peaks: Peaks) -> float:
        """Return the least time that any version takes on a card with these peaks."""
        operations_per_s = peaks.fp8_operations_per_s if self.fp8 else peaks.matrix_operations_per_s
        return 1e3 * max(self.moved_bytes / peaks.bytes_per_s, self.operations / operations_per_s)


class Library(NamedTuple):
    """A competitor. `build` returns its call, or raises any exception if it does not run here."""

    name: str
    build: Callable[[], Callable[..., object]]
    graph: bool = True  # False: it waits for the device, and is timed as launched


class Case(NamedTuple):
    """A kernel on one load. All calls take one of the sets of arguments that `inputs` draws. `ours` and `reference`
    return all tensors that they compute or write, alone or in a tuple."""

    kernel: str
    load: str
    work: Workload
    inputs: Callable[[torch.device, int], Inputs]  # so many sets
    ours: Callable[..., Any]
    reference: Callable[..., Any]
    libraries: Sequence[Library]
    reference_graph: bool = True  # False: it waits for the device


def eager(name: str, call: Callable[..., object], graph: bool = True) -> Library:
    return Library(name, lambda: call, graph)


def compiled(call: Callable[..., object]) -> Library:
    return Library("torch.compile", lambda: torch.compile(call, dynamic=False))


def drawn(shape: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.randn(shape, device=device, dtype=DTYPE)
