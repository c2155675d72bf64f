"""Inputs for kernels: paged rows, logits and spans, drawn from a seed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asynclane.kernels import tiles
from asynclane.kernels.prediction import Draws


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

    padding: rows without queries, and as many tokens of no row, behind the real ones.
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


def draws_of(count: int, device: str = "cpu", **knobs: Any) -> Draws:
    """Draws of `count` positions: greedy, but for the knobs given as a number or a list."""
    plain = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seeds": 3, "positions": 7, "steps": 1}
    whole = {"top_k": torch.int32, "seeds": torch.int64, "positions": torch.int64, "steps": torch.int64}
    return Draws(
        **{
            name: torch.tensor(knobs.get(name, value), dtype=whole.get(name, torch.float32), device=device)
            .expand(count)
            .contiguous()
            for name, value in plain.items()
        }
    )


def span_case(sizes: list[int], device: str = "cpu", seed: int = 0) -> dict[str, Tensor]:
    """Arguments of `transfer` for spans of these sizes: some ties, some closed positions, rules of every kind."""
    generator = torch.Generator().manual_seed(seed)
    total, count = sum(sizes), len(sizes)
    starts = torch.tensor(np.concatenate(([0], np.cumsum(sizes))), dtype=torch.int32)
    confidence = torch.rand(total, generator=generator, dtype=torch.float64)
    confidence = torch.where(torch.rand(total, generator=generator) < 0.3, 0.75, confidence)
    pick = torch.randint(0, 3, (count,), generator=generator)
    case = {
        "confidence": confidence,
        "open_": torch.rand(total, generator=generator) < 0.7,
        "span_starts": starts,
        "sure": torch.randint(0, 3, (count,), generator=generator).int(),
        "threshold": torch.tensor([0.5, 1.0, math.inf])[pick],
        "factor": torch.tensor([0.0, 1.0, 0.3])[torch.randint(0, 3, (count,), generator=generator)],
        "last_free": torch.rand(count, generator=generator) < 0.5,
    }
    return {name: value.to(device) for name, value in case.items()}


def plan_of(case: dict[str, Tensor], config: tiles.AttentionConfig, spare: int = 3) -> tiles.AttentionPlan:
    """A plan with padded tiles and a poisoned workspace."""
    tokens, heads, dim = case["queries"].shape
    queries = tiles.tile_queries(config, heads, case["keys"].shape[2])
    sizes = case["row_starts"].diff().cpu().numpy()
    laid = tiles.row_tiles(sizes, queries, visible=case["visible"].cpu().numpy())
    laid = np.concatenate((laid, np.full((spare, 2), -1, np.int32)))
    floats = tiles.workspace_floats(config, tokens, heads, dim)
    device = case["queries"].device
    workspace = torch.full((floats,), math.nan, device=device)
    return tiles.AttentionPlan(config, torch.from_numpy(laid).to(device), workspace)


def some_logits(device: str, count: int, vocabulary: int, dtype: torch.dtype, spread: float = 4.0) -> Tensor:
    torch.manual_seed(count + vocabulary)
    return (torch.randn(count, vocabulary, device=device) * spread).to(dtype)
