"""The layout of an attention launch, made on the host: the grid is fixed while the rows change.

A CUDA graph replays one grid. Attention therefore reads a list of tiles from the device: each names a row, the first of
its queries, and one split of its keys; the list is padded to a capacity with tiles that end at once. Only rows whose
tiles would keep a few programs at work after all others have ended have several splits (so does FlashInfer's plan, Ye
et al., 2025).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..common.types import PagedHeads

PROCESSORS = 132  # multiprocessors of an H100
PROGRAMS = 2 * PROCESSORS  # of attention, that run at a time
MOST_SPLITS = 8  # of the keys of a row
LEAST_TURNS = 2  # blocks of keys in a split
TILE_WORDS = 4  # row, first query, split of the keys, number of splits
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
    tiles: Tensor  # [capacity, 4] int32 on the device: (row, its first query, split, splits), row -1 is padding
    # int32 zeros, `arrival_words` of them, which are zeros again after each launch; None: no row has several splits
    arrivals: Tensor | None = None


LARGEST_TILE = 64  # but for groups of more heads
# (largest number of packed queries in a row, its class), for heads of up to 256 bytes and for larger ones.
_CLASSES = [
    (16, AttentionConfig(16, 64, 4, 3)),
    (32, AttentionConfig(32, 64, 4, 3)),
    (1 << 31, AttentionConfig(LARGEST_TILE, 64, 4, 3)),
]
_WIDE = [(16, AttentionConfig(16, 32, 4, 2)), (1 << 31, AttentionConfig(32, 32, 4, 2))]


def attention_config(
    tokens: int, rows: int, heads: int, kv_heads: int, head_dim: int, element_bytes: int = 2
) -> AttentionConfig:
    """The class for about `rows` rows of `tokens` queries in all.

    Block sizes decide the order of float32 sums, hence the last bits: launches that must agree to the bit share one
    config, and no row of them has several splits.
    """
    group = heads // kv_heads
    packed = -(-tokens // max(rows, 1)) * group
    classes = _CLASSES if head_dim * element_bytes <= 256 else _WIDE
    config = next(config for most, config in classes if packed <= most)
    block_m = max(config.block_m, 1 << (group - 1).bit_length())
    return fitting(replace(config, block_m=block_m), head_dim, element_bytes)


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
    return attention_config(1 << 20, 1, heads, kv_heads, head_dim, element_bytes)


def tile_queries(config: AttentionConfig, heads: int, kv_heads: int) -> int:
    """Queries of a tile, which holds all heads that share a key head, or one of the parts of them."""
    return config.block_m // (heads // kv_heads // config.parts)


def tile_capacity(tokens: int, rows: int, queries: int) -> int:
    """The most tiles of `queries` queries that up to `rows` rows of `tokens` tokens in all can need."""
    alone = min(tokens, rows)
    return alone + (tokens - alone) // queries


def turn_share(turns: int, groups: int) -> int:
    """The turns of each program if all that run at a time took as many, of `turns` for each of `groups` groups of
    heads."""
    return max(LEAST_TURNS, -(-turns * groups // PROGRAMS))


def key_splits(turns: np.ndarray, share: int) -> np.ndarray:
    """In how many splits [R] the keys of each row are read, whose tiles take `turns` [R]: several, of about a share
    each, where a tile takes more than that."""
    return ((turns + share // 2) // share).clip(1, MOST_SPLITS)


def tiles_of_row(size: int, queries: int, splits: int) -> list[int]:
    """Words of the tiles of one row of `size` queries: as `row_tiles`, but quick where a step has no other row."""
    return [word for first in range(0, size, queries) for split in range(splits) for word in (0, first, split, splits)]


def most_split_tiles(groups: int) -> int:
    """The most tiles that are one of several splits. A row with several has at least 1.5 shares of turns, so at most
    4 / 3 splits for each share, and there are as many shares as programs."""
    return -(-4 * PROGRAMS // (3 * groups))


def row_tiles(
    sizes: np.ndarray, queries: int, capacity: int | None = None, visible: np.ndarray | None = None,
    splits: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Tiles [capacity, 4] int32 of rows with `sizes` [R] queries; those of rows that see most keys come first.

    capacity: how many to pad to (None: no padding); visible [R]: keys of each row (None: rows keep their order);
    `splits` [R] of each row's keys (None: one). Long tiles first leaves short ones to fill the gaps at the end.
    """
    counts = -(-np.asarray(sizes, np.int64) // queries)
    order = np.arange(len(counts))
    if visible is not None:
        order = np.argsort(-np.asarray(visible, np.int64), kind="stable")
        counts = counts[order]
    each = np.ones_like(counts) if splits is None else splits[order]
    programs = counts * each
    total = int(programs.sum())
    tiles = np.full((max(total, 1) if capacity is None else capacity, TILE_WORDS), -1, np.int32)
    if total > len(tiles):
        raise ValueError(f"{total} tiles do not fit a capacity of {len(tiles)}")
    number = np.arange(total) - (programs.cumsum() - programs).repeat(programs)  # within its row
    of_row = each.repeat(programs)
    tiles[:total, 0] = order.repeat(programs)
    tiles[:total, 1] = number // of_row * queries
    tiles[:total, 2] = number % of_row
    tiles[:total, 3] = of_row
    return tiles


def arrival_words(groups: int) -> int:
    """The most programs of tiles that are one of several splits; the first split of a tile counts those that ended."""
    return most_split_tiles(groups) * groups


def split_floats(block_m: int, groups: int, head_dim: int) -> int:
    """The numbers that programs with one of several splits leave for each other: of each its sums of values, its maxima
    and its sums of weights."""
    return arrival_words(groups) * block_m * (head_dim + 2)


def plan_attention(
    queries: Tensor, keys: PagedHeads, row_starts: Tensor, visible: Tensor, config: AttentionConfig | None = None
) -> AttentionPlan:
    """A plan for rows that are known only on the device: it waits for the device. For tests and measurements."""
    tokens, heads, head_dim = queries.shape
    sizes, seen = row_starts.diff().cpu().numpy(), visible.cpu().numpy().astype(np.int64)
    kv_heads = keys.shape[2]
    if config is None:
        config = attention_config(tokens, len(sizes), heads, kv_heads, head_dim, queries.element_size())
    each, groups = tile_queries(config, heads, kv_heads), kv_heads * config.parts
    counts, turns = -(-sizes // each), -(-seen // config.block_n)
    splits = key_splits(turns, turn_share(int(counts @ turns), groups))
    tiles = torch.from_numpy(row_tiles(sizes, each, None, seen, splits)).to(queries.device)
    return AttentionPlan(config, tiles, tiles.new_zeros(arrival_words(groups)))
