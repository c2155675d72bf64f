"""Matrix products of a fixed order, in FP8 and int4, and with what follows them, beside the library's in bf16."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ...kernels import fused
from ...kernels.common.types import Fp8Matrix, GroupedMatrix
from ...kernels.linear import dequantize, linear, quantize_groups, quantize_rows, reference
from . import block_cases
from .cases import DREAM, DTYPE, FEW, ITEM, LLADA, SMALL, TOKENS, Case, Inputs, Shape, Workload, drawn, eager

GROUP = 128  # columns that share a scale


def cases(quick: bool) -> list[Case]:
    sizes = [(SMALL, 64)] if quick else [*((LLADA, tokens) for tokens in TOKENS), (DREAM, TOKENS[-1])]
    few = sizes if quick else [(LLADA, tokens) for tokens in FEW]
    return [
        *(make(*size) for make in (fixed_linear, fp8_linear, int4_linear, fp8_blocks_linear) for size in sizes),
        *(make(*size) for make in (linear_swiglu, linear_add_rms_norm, linear_rope_write_kv, head) for size in few),
    ]


def fixed_linear(shape: Shape, tokens: int) -> Case:
    """The wider of a block's products."""
    inner, columns = shape.dim, 2 * shape.ff_dim

    def inputs(device: torch.device, sets: int) -> Inputs:
        return [(drawn((tokens, inner), device), drawn((columns, inner), device)) for _ in range(sets)]

    return Case(
        "fixed_linear", f"{shape.name}, {tokens} tokens", _work(tokens, inner, columns), inputs,
        lambda x, w: linear(x, w, fixed=True), reference.fixed_linear, [eager("cuBLAS", F.linear)],
    )  # fmt: skip


def fp8_linear(shape: Shape, tokens: int) -> Case:
    """The same in FP8, its input quantized on the way; the library's product is in bf16."""
    inner, columns = shape.dim, 2 * shape.ff_dim

    def inputs(device: torch.device, sets: int) -> Inputs:
        weights = (drawn((columns, inner), device) for _ in range(sets))
        return [(drawn((tokens, inner), device), Fp8Matrix(*quantize_rows(weight)), weight) for weight in weights]

    moved = tokens * (inner + columns) * ITEM + inner * columns + 4 * columns
    work = Workload(moved, 2 * tokens * inner * columns, fp8=True)
    return Case(
        "fp8_linear", f"{shape.name}, {tokens} tokens", work, inputs, lambda x, w, _: linear(x, w),
        lambda x, w, _: reference.fp8_linear(x, w), [eager("cuBLAS bf16", lambda x, _, w: F.linear(x, w))],
    )  # fmt: skip


def int4_linear(shape: Shape, tokens: int) -> Case:
    """The same in int4, whose numbers become bf16 in the kernel; the library's product is of these in bf16."""
    words = shape.dim * 2 * shape.ff_dim // 2
    return _grouped("int4_linear", shape, tokens, words, lambda weight: quantize_groups(weight, GROUP))


def fp8_blocks_linear(shape: Shape, tokens: int) -> Case:
    """The same in FP8 whose columns have scales in groups, as a checkpoint of blocks has them."""

    def in_groups(weight: Tensor) -> GroupedMatrix:
        rows, columns = weight.shape
        values, scales = quantize_rows(weight)
        return GroupedMatrix(values, scales[:, None].expand(rows, columns // GROUP), GROUP)

    return _grouped("fp8_blocks_linear", shape, tokens, shape.dim * 2 * shape.ff_dim, in_groups)


def _grouped(
    kernel: str, shape: Shape, tokens: int, stored_bytes: int, quantize: Callable[[Tensor], GroupedMatrix]
) -> Case:
    inner, columns = shape.dim, 2 * shape.ff_dim

    def inputs(device: torch.device, sets: int) -> Inputs:
        weights = (quantize(_weight(columns, inner, device)) for _ in range(sets))
        return [(drawn((tokens, inner), device), weight, dequantize(weight).to(DTYPE)) for weight in weights]

    int4 = kernel == "int4_linear"  # has zeros as well, and its product is in bf16
    moved = tokens * (inner + columns) * ITEM + stored_bytes + 4 * (2 if int4 else 1) * columns * inner // GROUP
    work = Workload(moved, 2 * tokens * inner * columns, fp8=not int4)
    return Case(
        kernel, f"{shape.name}, {tokens} tokens", work, inputs, lambda x, w, _: linear(x, w),
        lambda x, w, _: reference.linear(x, w), [eager("cuBLAS bf16", lambda x, _, w: F.linear(x, w))],
    )  # fmt: skip


def head(shape: Shape, tokens: int) -> Case:
    """Logits of the vocabulary."""

    def inputs(device: torch.device, sets: int) -> Inputs:
        return [(drawn((tokens, shape.dim), device), _weight(shape.vocabulary, shape.dim, device)) for _ in range(sets)]

    return Case(
        "linear", f"{shape.name}'s head, {tokens} tokens", _work(tokens, shape.dim, shape.vocabulary), inputs, linear,
        reference.linear, [eager("cuBLAS", F.linear)],
    )  # fmt: skip


def linear_swiglu(shape: Shape, tokens: int) -> Case:
    def inputs(device: torch.device, sets: int) -> Inputs:
        return [(drawn((tokens, shape.dim), device), _weight(2 * shape.ff_dim, shape.dim, device)) for _ in range(sets)]

    def gated(x: Tensor, weight: Tensor) -> Tensor:
        gate, up = F.linear(x, weight).chunk(2, -1)
        return F.silu(gate) * up

    moved, operations, _ = _work(tokens, shape.dim, 2 * shape.ff_dim)
    return Case(
        "linear_swiglu", f"{shape.name}, {tokens} tokens", Workload(moved - tokens * shape.ff_dim * ITEM, operations),
        inputs, fused.linear_swiglu, fused.reference.linear_swiglu, [eager("cuBLAS, F.silu, *", gated)],
    )  # fmt: skip


def linear_add_rms_norm(shape: Shape, tokens: int) -> Case:
    """The last of an MLP's products."""
    inner, dim = shape.ff_dim, shape.dim

    def inputs(device: torch.device, sets: int) -> Inputs:
        norm = drawn((dim,), device)
        return [
            (
                drawn((tokens, inner), device), _weight(dim, inner, device), drawn((tokens, dim), device), norm,
                block_cases.EPS,
            )
            for _ in range(sets)
        ]  # fmt: skip

    def normed(x: Tensor, weight: Tensor, residual: Tensor, norm: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = residual + F.linear(x, weight)
        return F.rms_norm(total, norm.shape, norm, eps), total

    moved, operations, _ = _work(tokens, inner, dim)
    return Case(
        "linear_add_rms_norm", f"{shape.name}, {tokens} tokens",
        Workload(moved + (2 * tokens + 1) * dim * ITEM, operations), inputs, fused.linear_add_rms_norm,
        fused.reference.linear_add_rms_norm, [eager("cuBLAS, +, F.rms_norm", normed)],
    )  # fmt: skip


def linear_rope_write_kv(shape: Shape, tokens: int) -> Case:
    """The arguments of `rope_write_kv`, with what the product is of in place of the product."""
    small = block_cases.rope_write_kv(shape, tokens)
    columns = (shape.heads + 2 * shape.kv_heads) * shape.head_dim

    def inputs(device: torch.device, sets: int) -> Inputs:
        return [
            (drawn((tokens, shape.dim), device), _weight(columns, shape.dim, device), *given[1:])
            for given in small.inputs(device, sets)
        ]

    def ours(x: Tensor, weight: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        cos, sin, keys, values, places = others
        return fused.linear_rope_write_kv(x, weight, cos, sin, keys, values, places), keys, values

    def plain(x: Tensor, weight: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = small.reference(_heads(x, weight, shape), *others)
        return found

    def library(x: Tensor, weight: Tensor, *others: Tensor) -> object:
        return small.libraries[0].build()(_heads(x, weight, shape), *others)

    moved, operations, _ = _work(tokens, shape.dim, columns)
    work = Workload(moved + small.work.moved_bytes - 2 * tokens * columns * ITEM, operations)
    return Case(
        "linear_rope_write_kv", f"{shape.name}, {tokens} tokens", work, inputs, ours, plain,
        [eager("cuBLAS, torch", library)], reference_graph=False,
    )  # fmt: skip


def _heads(x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    return F.linear(x, weight).view(len(x), -1, shape.head_dim)


def _weight(rows: int, columns: int, device: torch.device) -> Tensor:
    """A weight that keeps the scale of its input."""
    return drawn((rows, columns), device).mul_(columns**-0.5)


def _work(tokens: int, inner: int, columns: int) -> Workload:
    return Workload((tokens * (inner + columns) + inner * columns) * ITEM, 2 * tokens * inner * columns)
