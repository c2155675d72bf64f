"""Attention, measured against the library's kernels, whose keys are contiguous and not in pages.

Rows of equal length make one batch. Rows of mixed length do not: a library gets them padded with a mask, or, where it
takes that, packed with the bounds of each row. With keys and values in FP8 it is measured against our own kernel on the
same numbers in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...kernels.attention import paged_attention, reference
from ...kernels.attention.tiles import AttentionPlan, plan_attention
from ...kernels.common.types import FP8, Fp8Heads
from .cases import DREAM, DTYPE, ITEM, LLADA, PAGE_SIZE, SMALL, Case, Inputs, Library, Shape, Workload, drawn, eager

# (rows, queries of each, keys of each)
EQUAL = ((1, 1024, 1024), (1, 2048, 2048), (4, 512, 512), (16, 64, 512), (32, 64, 512), (64, 64, 1024))
GROUPED = ((1, 1024, 1024), (32, 64, 512), (64, 64, 1024))
Rows = Sequence[tuple[int, int]]  # (queries, keys), those with most keys first: long tiles first, as the runner has it
PREFILLS: Rows = [(size, size) for size in (2048, 1024, 512, 256, 128, 64, 32)]
DENOISING: Rows = [(64, 64 * number) for number in range(32, 0, -1)]
BOTH: Rows = [(1024, 1024), *[(64, 512)] * 30]
MIXED = (
    ("prefills of 32 to 2048", PREFILLS),
    ("32 rows of 64 over 64 to 2048 keys", DENOISING),
    ("30 rows of 64 over 512, one of 1024", BOTH),
)


class Paged(NamedTuple):
    """Arguments of `paged_attention`."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    page_table: Tensor
    row_starts: Tensor
    visible: Tensor


class Fp8Paged(NamedTuple):
    """Arguments of `paged_attention` with keys and values in FP8."""

    queries: Tensor
    keys: Fp8Heads
    values: Fp8Heads
    page_table: Tensor
    row_starts: Tensor
    visible: Tensor


class Batch(NamedTuple):
    """[rows, heads, longest, D] each, and where a query may look: [rows, 1, 1, longest] bool."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor | None


class Packed(NamedTuple):
    """[T, heads, D] each, and where rows start: [rows + 1] int32."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    query_starts: Tensor
    key_starts: Tensor
    longest: tuple[int, int]
    blocks: Any  # flex attention's mask


def cases(quick: bool) -> list[Case]:
    if quick:
        few = [(128, 192), (64, 128), (32, 32)]
        return [equal(SMALL, 2, 64, 128), mixed(SMALL, "rows of 32 to 128", few), in_fp8(SMALL, 2, 64, 128)]
    return [
        *(equal(LLADA, *rows) for rows in EQUAL),
        *(equal(DREAM, *rows) for rows in GROUPED),
        *(mixed(LLADA, *rows) for rows in MIXED),
        mixed(DREAM, *MIXED[-1]),
        *(in_fp8(LLADA, *rows) for rows in EQUAL),
        *(in_fp8(DREAM, *rows) for rows in GROUPED),
    ]


def equal(shape: Shape, count: int, queries: int, keys: int) -> Case:
    rows = [(queries, keys)] * count
    libraries = [*_backends(shape), Library("flex", lambda: _flex_batch(shape))]
    return _case(shape, f"{count} x {queries} over {keys}", rows, libraries, _batch)


def mixed(shape: Shape, name: str, rows: Rows) -> Case:
    libraries = [
        *(library._replace(name=f"{library.name}, padded") for library in _backends(shape)),
        Library("flex, packed", lambda: _flex_packed(shape)),
        Library("varlen_attn, packed", lambda: _varlen(shape)),
    ]
    return _case(shape, name, rows, libraries, lambda *given: (*_batch(*given), *_packed(*given)))


def in_fp8(shape: Shape, count: int, queries: int, keys: int) -> Case:
    rows = [(queries, keys)] * count

    def inputs(device: torch.device, sets: int) -> Inputs:
        drawn_sets: Inputs = []
        for _ in range(sets):
            paged = _paged(shape, rows, device)
            plan = plan_attention(paged.queries, paged.keys, paged.row_starts, paged.visible)
            keys, values = (_in_fp8(kv) for kv in (paged.keys, paged.values))
            rounded = Fp8Paged(paged.queries, keys, values, paged.page_table, paged.row_starts, paged.visible)
            drawn_sets.append((plan, rounded, paged._replace(keys=_wide(keys), values=_wide(values))))
        return drawn_sets

    def ours(plan: AttentionPlan, rounded: Fp8Paged, _paged: Paged) -> Tensor:
        return paged_attention(*rounded, plan=plan)

    def plain(_plan: AttentionPlan, rounded: Fp8Paged, _paged: Paged) -> Tensor:
        return reference.paged_attention(*rounded)

    def in_bfloat16(plan: AttentionPlan, _rounded: Fp8Paged, paged: Paged) -> Tensor:
        return paged_attention(*paged, plan=plan)

    load, libraries = f"{shape.name}, {count} x {queries} over {keys}", [eager("ours in bfloat16", in_bfloat16)]
    bound = work(shape, rows, shape.head_dim + 4)
    return Case("fp8_paged_attention", load, bound, inputs, ours, plain, libraries, reference_graph=False)


def _in_fp8(heads: Tensor) -> Fp8Heads:
    """Random numbers [pages, page_size, G, D] in FP8, with random scales."""
    pages, page_size, kv_heads, _ = heads.shape
    scales = torch.rand((pages, kv_heads, page_size), dtype=torch.float32, device=heads.device).add_(0.5)
    return Fp8Heads(heads.to(FP8), scales)


def _wide(heads: Fp8Heads) -> Tensor:
    return (heads.numbers.float() * heads.scales.transpose(1, 2)[..., None]).to(DTYPE)


def work(shape: Shape, rows: Rows, kv_width: int | None = None) -> Workload:
    """`kv_width`: bytes of a position's key head, and of its values; None: those in bfloat16."""
    tokens, keys = sum(size for size, _ in rows), sum(seen for _, seen in rows)
    pairs = sum(size * seen for size, seen in rows)
    width = shape.head_dim * ITEM
    moved = 2 * (tokens * shape.heads * width + keys * shape.kv_heads * (kv_width or width))
    return Workload(moved, 4 * pairs * shape.heads * shape.head_dim)


def _case(
    shape: Shape,
    name: str,
    rows: Rows,
    libraries: Sequence[Library],
    others: Callable[[Rows, Paged], tuple[Any, ...]],
) -> Case:
    """A set holds our plan and arguments, then the same rows as `others` lay them out."""

    def inputs(device: torch.device, sets: int) -> Inputs:
        drawn_sets: Inputs = []
        for _ in range(sets):
            paged = _paged(shape, rows, device)
            plan = plan_attention(paged.queries, paged.keys, paged.row_starts, paged.visible)
            drawn_sets.append((plan, paged, *others(rows, paged)))
        return drawn_sets

    def ours(plan: AttentionPlan, paged: Paged, *_: object) -> Tensor:
        return paged_attention(*paged, plan=plan)

    def plain(_plan: AttentionPlan, paged: Paged, *_: object) -> Tensor:
        return reference.paged_attention(*paged)

    load = f"{shape.name}, {name}"
    return Case("paged_attention", load, work(shape, rows), inputs, ours, plain, libraries, reference_graph=False)


# --- The same rows in each layout ---------------------------------------------------------------------------


def _paged(shape: Shape, rows: Rows, device: torch.device) -> Paged:
    """Pages in shuffled order."""
    sizes, seen = zip(*rows, strict=True)
    each = -(-max(seen) // PAGE_SIZE)
    counts = [-(-keys // PAGE_SIZE) for keys in seen]
    order = torch.randperm(sum(counts), device=device).int()
    table = torch.zeros((len(rows), each), dtype=torch.int32, device=device)
    for row, pages in enumerate(torch.split(order, counts)):
        table[row, : len(pages)] = pages
    cache = sum(counts), PAGE_SIZE, shape.kv_heads, shape.head_dim
    queries = drawn((sum(sizes), shape.heads, shape.head_dim), device)
    return Paged(
        queries, drawn(cache, device), drawn(cache, device), table, _starts(sizes, device), _int32(seen, device)
    )


def _batch(rows: Rows, paged: Paged) -> tuple[Batch]:
    """Shorter rows are padded with other keys and queries, which are masked or ignored."""
    device = paged.queries.device
    longest, seen = (max(column) for column in zip(*rows, strict=True))
    place = paged.row_starts[:-1, None] + torch.arange(longest, device=device)
    queries = paged.queries[place.clamp_max(len(paged.queries) - 1)].transpose(1, 2)
    keys, values = (_gathered(kv, paged)[:, :seen].transpose(1, 2) for kv in (paged.keys, paged.values))
    mask = None
    if len(set(rows)) > 1:
        mask = (torch.arange(seen, device=device) < paged.visible[:, None])[:, None, None]
    return (Batch(queries, keys, values, mask),)


def _packed(rows: Rows, paged: Paged) -> tuple[Packed]:
    from torch.nn.attention.flex_attention import create_block_mask

    device = paged.queries.device
    sizes, seen = zip(*rows, strict=True)
    number = torch.arange(len(rows), device=device)
    row_of_query, row_of_key = (number.repeat_interleave(_int32(column, device)) for column in (sizes, seen))

    def same_row(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return row_of_query[query] == row_of_key[key]

    real = torch.arange(paged.page_table.shape[1] * PAGE_SIZE, device=device) < paged.visible[:, None]
    keys, values = (_gathered(kv, paged)[real] for kv in (paged.keys, paged.values))
    blocks = create_block_mask(same_row, 1, 1, sum(sizes), sum(seen), device=device)
    bounds = paged.row_starts, _starts(seen, device)
    return (Packed(paged.queries, keys, values, *bounds, (max(sizes), max(seen)), blocks),)


def _gathered(kv: Tensor, paged: Paged) -> Tensor:
    """[rows, positions, kv_heads, D], contiguous."""
    return kv[paged.page_table.long()].flatten(1, 2)


def _starts(sizes: Sequence[int], device: torch.device) -> Tensor:
    return _int32(np.concatenate(([0], np.cumsum(sizes))).tolist(), device)


def _int32(values: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


# --- The library's calls ------------------------------------------------------------------------------------


def _grouped(shape: Shape) -> bool:
    return shape.heads != shape.kv_heads


def _backends(shape: Shape) -> list[Library]:
    from torch.nn.attention import SDPBackend

    found = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
    return [eager(f"SDPA {backend.name.split('_')[0].lower()}", _sdpa(shape, backend)) for backend in found]


def _sdpa(shape: Shape, backend: Any) -> Callable[..., Tensor]:
    from torch.nn.attention import sdpa_kernel

    def sdpa(_plan: object, _paged: object, batch: Batch, *_: object) -> Tensor:
        with sdpa_kernel([backend]):
            return F.scaled_dot_product_attention(*batch, enable_gqa=_grouped(shape))

    return sdpa


def _flex_batch(shape: Shape) -> Callable[..., object]:
    flex = _compiled_flex()

    def sdpa(_plan: object, _paged: object, batch: Batch) -> object:
        return flex(batch.queries, batch.keys, batch.values, enable_gqa=_grouped(shape))

    return sdpa


def _flex_packed(shape: Shape) -> Callable[..., object]:
    flex = _compiled_flex()

    def sdpa(_plan: object, _paged: object, _batch: object, packed: Packed) -> object:
        q, k, v = (heads.transpose(0, 1)[None] for heads in packed[:3])
        return flex(q, k, v, block_mask=packed.blocks, enable_gqa=_grouped(shape))

    return sdpa


def _compiled_flex() -> Callable[..., object]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def _varlen(shape: Shape) -> Callable[..., object]:
    from torch.nn.attention.varlen import varlen_attn

    # Named only where it is needed: older ones do not have it.
    grouping: dict[str, Any] = {"enable_gqa": True} if _grouped(shape) else {}

    def sdpa(_plan: object, _paged: object, _batch: object, packed: Packed) -> object:
        bounds = packed.query_starts, packed.key_starts, *packed.longest
        return varlen_attn(packed.queries, packed.keys, packed.values, *bounds, **grouping)

    return sdpa
