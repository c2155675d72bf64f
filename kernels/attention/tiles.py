"""The layout of an attention launch, made on the host: the grid is fixed while the rows change.

A CUDA graph replays one grid. Attention therefore reads a list of tiles from the device: each names a row and the
first of its queries; the list is padded to a capacity with tiles that end at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..common.types import PagedHeads

PROCESSORS = 132  # multiprocessors of an H100
MOST_SPLITS = 8
SHARED_BYTES = 227 * 1024  # of shared memory that one program of an H100 can have
LEAST_KEYS = 16  # of a turn
BARRIERS_BYTES = 256


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Shape of one program: `block_m` (query, head) pairs that share a key head, against `block_n` keys a turn. The
    query heads of a key head are shared out evenly among `parts` programs."""

    block_m: int
    block_n: int
    warps: int
    stages: int
    splits: int = 1  # programs that share the keys of one tile
    parts: int = 1


@dataclass(frozen=True, slots=True)
class AttentionWindow:
    """The keys that queries of a causal network see: the last `size` up to their own (0: all up to it).

    `canvas_starts` [R] int32: in a row where it is not below 0 every query sees all keys that are visible, less those
    that a query at this position does not see either. None: there is no such row.
    """

    size: int = 0
    canvas_starts: Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The numbers of a launch besides the rows."""

    config: AttentionConfig
    tiles: Tensor  # [capacity, 2] int32 on the device: (row, its first query), row -1 is padding
    workspace: Tensor | None = None  # float32, `workspace_floats` of them; None: allocated in the call


# (largest number of packed queries in a row, its class), for heads of up to 256 bytes and for larger ones.
_CLASSES = [
    (16, AttentionConfig(16, 64, 4, 3)),
    (32, AttentionConfig(32, 64, 4, 3)),
    (1 << 31, AttentionConfig(64, 64, 4, 3)),
]
_WIDE = [(16, AttentionConfig(16, 32, 4, 2)), (1 << 31, AttentionConfig(32, 32, 4, 2))]


def attention_config(
    tokens: int, rows: int, visible: int, heads: int, kv_heads: int, head_dim: int, element_bytes: int = 2
) -> AttentionConfig:
    """The class for about `rows` rows of `tokens` queries in all, which see up to `visible` keys each.

    Keys are split when tiles alone would leave multiprocessors idle. Block sizes and splits decide the order of
    float32 sums, hence the last bits: launches that must agree to the bit share one config.
    """
    group = heads // kv_heads
    packed = -(-tokens // max(rows, 1)) * group
    classes = _CLASSES if head_dim * element_bytes <= 256 else _WIDE
    config = next(config for most, config in classes if packed <= most)
    block_m = max(config.block_m, 1 << (group - 1).bit_length())
    config = fitting(replace(config, block_m=block_m), head_dim, element_bytes)
    programs = tile_capacity(tokens, rows, block_m // group) * kv_heads
    turns = -(-visible // config.block_n)
    splits = 1
    while splits < MOST_SPLITS and programs * splits * 2 <= PROCESSORS and turns >= splits * 4:
        splits *= 2
    return replace(config, splits=splits)


def shared_bytes(config: AttentionConfig, head_dim: int, element_bytes: int) -> int:
    """The most shared memory of a program: keys and values in each stage, queries, and the weights of a turn. The
    compiler takes less where it keeps queries or weights in registers, and where keys and values are in FP8."""
    stages = 2 * config.stages * config.block_n * head_dim
    return (stages + config.block_m * (head_dim + config.block_n)) * element_bytes + BARRIERS_BYTES


def fitting(config: AttentionConfig, head_dim: int, element_bytes: int) -> AttentionConfig:
    """`config` with fewer keys a turn, and then fewer stages, as far as a program needs it for its shared memory."""
    while shared_bytes(config, head_dim, element_bytes) > SHARED_BYTES:
        if config.block_n > LEAST_KEYS:
            config = replace(config, block_n=config.block_n // 2)
        elif config.stages > 1:
            config = replace(config, stages=config.stages - 1)
        else:
            break
    return config


def fixed_config(heads: int, kv_heads: int, head_dim: int, element_bytes: int = 2) -> AttentionConfig:
    """One class for every launch, so that a query's bits do not depend on the other rows of the launch."""
    return attention_config(1 << 20, 1, 0, heads, kv_heads, head_dim, element_bytes)


def tile_queries(config: AttentionConfig, heads: int, kv_heads: int) -> int:
    """Queries of a tile, which holds all heads that share a key head, or one of the parts of them."""
    return config.block_m // (heads // kv_heads // config.parts)


def tile_capacity(tokens: int, rows: int, queries: int) -> int:
    """The most tiles of `queries` queries that up to `rows` rows of `tokens` tokens in all can need."""
    alone = min(tokens, rows)
    return alone + (tokens - alone) // queries


def row_tiles(
    sizes: np.ndarray, queries: int, capacity: int | None = None, visible: np.ndarray | None = None
) -> np.ndarray:
    """Tiles [capacity, 2] int32 of rows with `sizes` [R] queries; those of rows that see most keys come first.

    capacity: how many to pad to (None: no padding); visible [R]: keys of each row (None: rows keep their order).
    Long tiles first leaves short ones to fill the gaps at the end.
    """
    counts = -(-np.asarray(sizes, np.int64) // queries)
    order = np.arange(len(counts))
    if visible is not None:
        order = np.argsort(-np.asarray(visible, np.int64), kind="stable")
        counts = counts[order]
    total = int(counts.sum())
    tiles = np.full((max(total, 1) if capacity is None else capacity, 2), -1, np.int32)
    if total > len(tiles):
        raise ValueError(f"{total} tiles do not fit a capacity of {len(tiles)}")
    tiles[:total, 0] = order.repeat(counts)
    tiles[:total, 1] = (np.arange(total) - (counts.cumsum() - counts).repeat(counts)) * queries
    return tiles


def workspace_floats(config: AttentionConfig, tokens: int, heads: int, head_dim: int) -> int:
    """Size of a launch's workspace: the partial sums of every split, with their maxima and weights."""
    return 0 if config.splits == 1 else config.splits * tokens * heads * (head_dim + 2)


def plan_attention(
    queries: Tensor, keys: PagedHeads, page_table: Tensor, row_starts: Tensor, config: AttentionConfig | None = None
) -> AttentionPlan:
    """A plan for rows that are known only on the device: it waits for the device. For tests and measurements."""
    tokens, heads, head_dim = queries.shape
    sizes = row_starts.diff().cpu().numpy()
    kv_heads = keys.shape[2]
    if config is None:
        seen = page_table.shape[1] * keys.shape[1]
        config = attention_config(tokens, len(sizes), seen, heads, kv_heads, head_dim, queries.element_size())
    tiles = row_tiles(sizes, tile_queries(config, heads, kv_heads))
    return AttentionPlan(config, torch.from_numpy(tiles).to(queries.device))
