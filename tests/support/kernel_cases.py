"""Inputs for kernels: paged rows, logits and spans, drawn from a seed."""

from __future__ import annotations

import functools
import importlib
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from asynclane.kernels.attention import tiles
from asynclane.kernels.common.types import Draws, Fp8Heads, SpanRules
from asynclane.kernels.linear.reference import quantize_rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Triton's interpreter cuts bf16 off instead of rounding it, and cannot multiply matrices of it.
NARROW = [torch.float16, torch.bfloat16] if DEVICE == "cuda" else [torch.float16]
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class _Absent:
    """The kernels of a machine without Triton: a test that uses one is skipped."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> Any:
        pytest.skip(self._reason)


def kernels_of(operation: str, module: str = "triton") -> Any:
    """A module with an operation's Triton kernels, which run in Triton's interpreter where there is no GPU."""
    try:  # the interpreter of older ones fails on loops with the numpy of today
        pytest.importorskip("triton", minversion="3.5" if DEVICE == "cuda" else "3.9")
    except pytest.skip.Exception as error:
        return _Absent(str(error))
    if DEVICE == "cpu":
        _patch_once()
    return importlib.import_module(f"asynclane.kernels.{operation}.{module}")


@functools.cache
def _patch_once() -> None:
    """Save a third of the interpreter's time: it patches the language for each launch, and again, to no effect, for
    each call of a function within one."""
    interpreter, language = (importlib.import_module(f"triton.{name}") for name in ("runtime.interpreter", "language"))
    patch = interpreter._patch_lang

    @functools.cache
    def namespaces(function: Any) -> list[Any]:
        return [each for each in (language, language.core) if each in function.__globals__.values()]

    def patch_unpatched(function: Any) -> Any:
        unpatched = any(language.core.is_builtin(each.load) for each in namespaces(function))
        return patch(function) if unpatched else interpreter._LangPatchScope()

    interpreter._patch_lang = patch_unpatched


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=DEVICE).to(dtype)


def assert_near(got: Tensor, want: Tensor) -> None:
    limit = TOLERANCE[want.dtype]
    torch.testing.assert_close(got.float(), want.float(), atol=limit, rtol=limit)


def attention_case(
    rows: list[tuple[int, int]],
    heads: int,
    kv_heads: int,
    dim: int,
    page_size: int,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    padding: int = 0,
) -> dict[str, Tensor]:
    """Arguments of `paged_attention` for rows of (queries, visible keys), in shuffled pages, the rest of which is NaN.

    padding: rows without queries, and as many tokens of no row, after the real ones.
    """
    generator = torch.Generator(device).manual_seed(len(rows) + heads)
    per_row = max(-(-visible // page_size) for _, visible in rows)
    count = len(rows)
    pages = count * per_row + 1
    order = torch.randperm(pages - 1, generator=generator, device=device)[: count * per_row]
    table = torch.zeros((count + padding, per_row), dtype=torch.int32, device=device)
    table[:count] = order.view(count, per_row).int()
    shape = (pages, page_size, kv_heads, dim)
    keys = torch.randn(shape, generator=generator, device=device).to(dtype)
    values = torch.randn(shape, generator=generator, device=device).to(dtype)
    position = torch.arange(per_row * page_size, device=device)
    seen = torch.tensor([visible for _, visible in rows], device=device)
    places = table[:count].long().repeat_interleave(page_size, dim=1) * page_size + position % page_size
    hidden = torch.ones(pages * page_size, dtype=torch.bool, device=device)
    hidden[places[position < seen[:, None]]] = False
    for kv in (keys, values):
        kv.flatten(0, 1)[hidden] = math.nan
    starts = np.concatenate(([0], np.cumsum([size for size, _ in rows])))
    starts = np.concatenate((starts, np.full(padding, starts[-1])))
    tokens = int(starts[-1])
    # A row's queries are its last visible positions.
    absolute = [np.arange(visible - size, visible) for size, visible in rows]
    return {
        "queries": torch.randn((tokens + padding, heads, dim), generator=generator, device=device).to(dtype),
        "keys": keys,
        "values": values,
        "page_table": table,
        "row_starts": torch.tensor(starts, dtype=torch.int32, device=device),
        "visible": torch.tensor([visible for _, visible in rows] + [0] * padding, dtype=torch.int32, device=device),
        "positions": torch.tensor(np.concatenate([*absolute, np.zeros(padding, np.int64)]), device=device),
    }


def in_fp8(kv: Tensor) -> Fp8Heads:
    """Keys or values [pages, page_size, G, D] in FP8, a scale for each position and head."""
    numbers, scales = quantize_rows(kv.flatten(0, 2))
    return Fp8Heads(numbers.view(kv.shape), scales.view(kv.shape[:3]).transpose(1, 2).contiguous())


def draws_of(count: int, device: str = "cpu", **params: Any) -> Draws:
    """Draws of `count` positions: greedy, but for the parameters given as a number or a list."""
    plain = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seeds": 3, "positions": 7, "steps": 1}
    whole = {"top_k": torch.int32, "seeds": torch.int64, "positions": torch.int64, "steps": torch.int64}
    return Draws(
        **{
            name: torch.tensor(params.get(name, value), dtype=whole.get(name, torch.float32), device=device)
            .expand(count)
            .contiguous()
            for name, value in plain.items()
        }
    )


def span_case(
    sizes: list[int], device: str = "cpu", seed: int = 0, budgets: bool = False
) -> tuple[Tensor, Tensor, SpanRules]:
    """Arguments of `transfer` for spans of these sizes: some ties, some closed positions, rules of every kind. With
    `budgets` confidences are negative, and most spans have one."""
    generator = torch.Generator().manual_seed(seed)
    total, count = sum(sizes), len(sizes)
    confidence = torch.rand(total, generator=generator, dtype=torch.float64)
    confidence = torch.where(torch.rand(total, generator=generator) < 0.3, 0.75, confidence)
    pick = torch.randint(0, 3, (count,), generator=generator)
    open_ = torch.rand(total, generator=generator) < 0.7
    rules = (
        torch.tensor(np.concatenate(([0], np.cumsum(sizes))), dtype=torch.int32),
        torch.randint(0, 3, (count,), generator=generator).int(),
        torch.tensor([0.5, 1.0, math.inf])[pick],
        torch.tensor([0.0, 1.0, 0.3])[torch.randint(0, 3, (count,), generator=generator)],
        torch.rand(count, generator=generator) < 0.5,
    )
    if budgets:
        confidence -= 1
        shares = torch.tensor([0.0, 0.04, 0.2, math.inf])[torch.randint(0, 4, (count,), generator=generator)]
        wide = torch.where(torch.rand(count, generator=generator) < 0.2, 0.5, -32.0)
        limits = shares * torch.tensor(sizes, dtype=torch.float32).clamp_min(1)
        rules = (*rules[:2], wide, *rules[3:], limits, torch.rand(count, generator=generator) < 0.5)
    return confidence.to(device), open_.to(device), SpanRules(*(numbers.to(device) for numbers in rules))


def plan_of(
    case: dict[str, Tensor], config: tiles.AttentionConfig, splits: int = 1, spare: int = 3
) -> tiles.AttentionPlan:
    """A plan with padded tiles, in which the keys of every other row are read in `splits` splits."""
    _, heads, _ = case["queries"].shape
    kv_heads = case["keys"].shape[2]
    queries = tiles.tile_queries(config, heads, kv_heads)
    sizes, visible = case["row_starts"].diff().cpu().numpy(), case["visible"].cpu().numpy()
    of_rows = np.ones_like(sizes)
    of_rows[np.argsort(-visible, kind="stable")[: -(-len(sizes) // 2)]] = splits
    laid = tiles.row_tiles(sizes, queries, visible=visible, splits=of_rows)
    laid = np.concatenate((laid, np.full((spare, tiles.TILE_WORDS), -1, np.int32)))
    device = case["queries"].device
    arrivals = torch.zeros(tiles.arrival_words(kv_heads * config.parts), dtype=torch.int32, device=device)
    return tiles.AttentionPlan(config, torch.from_numpy(laid).to(device), arrivals if splits > 1 else None)


def some_logits(device: str, count: int, vocabulary: int, dtype: torch.dtype, spread: float = 4.0) -> Tensor:
    torch.manual_seed(count + vocabulary)
    return (torch.randn(count, vocabulary, device=device) * spread).to(dtype)
