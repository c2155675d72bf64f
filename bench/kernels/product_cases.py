"""Matrix products of a fixed order and in FP8, measured against the library's in bf16."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...kernels.common.types import Fp8Matrix
from ...kernels.linear import linear, quantize_rows, reference
from .cases import DREAM, ITEM, LLADA, SMALL, TOKENS, Case, Inputs, Shape, Workload, drawn, eager


def cases(quick: bool) -> list[Case]:
    sizes = [(SMALL, 64)] if quick else [*((LLADA, tokens) for tokens in TOKENS), (DREAM, TOKENS[-1])]
    return [make(*size) for make in (fixed_linear, fp8_linear) for size in sizes]


def fixed_linear(shape: Shape, tokens: int) -> Case:
    """The wider of a block's products."""
    inner, columns = shape.dim, 2 * shape.ff_dim

    def inputs(device: torch.device, sets: int) -> Inputs:
        return [(drawn((tokens, inner), device), drawn((columns, inner), device)) for _ in range(sets)]

    work = Workload((tokens * (inner + columns) + inner * columns) * ITEM, 2 * tokens * inner * columns)
    return Case(
        "fixed_linear", f"{shape.name}, {tokens} tokens", work, inputs, lambda x, w: linear(x, w, fixed=True),
        reference.fixed_linear, [eager("cuBLAS", F.linear)],
    )  # fmt: skip


def fp8_linear(shape: Shape, tokens: int) -> Case:
    """The same in FP8, its input quantized on the way; the library's product is in bf16, and so is the bound's peak."""
    inner, columns = shape.dim, 2 * shape.ff_dim

    def inputs(device: torch.device, sets: int) -> Inputs:
        weights = (drawn((columns, inner), device) for _ in range(sets))
        return [(drawn((tokens, inner), device), Fp8Matrix(*quantize_rows(weight)), weight) for weight in weights]

    work = Workload(tokens * (inner + columns) * ITEM + inner * columns, 2 * tokens * inner * columns)
    return Case(
        "fp8_linear", f"{shape.name}, {tokens} tokens", work, inputs, lambda x, w, _: linear(x, w),
        lambda x, w, _: reference.fp8_linear(x, w), [eager("cuBLAS bf16", lambda x, _, w: F.linear(x, w))],
    )  # fmt: skip
