"""Paged attention: the reference against dense attention, the kernel against the reference, and its tiles."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from asynclane.kernels.attention import reference, tiles
from asynclane.models.exec.shapes import CANVAS_TILES

from ..support.kernel_cases import DEVICE, NARROW, assert_near, attention_case, in_fp8, kernels_of, plan_of
from ..support.scale import LONG, crossed, part

device = kernels_of("attention")
ROWS = [(5, 40), (0, 9), (1, 1), (18, 33), (3, 16)]
GIVEN = "queries", "keys", "values", "page_table", "row_starts", "visible"


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 64), (6, 2, 8)])
def test_paged_attention_equals_dense_attention_of_each_row(heads: int, kv_heads: int, dim: int) -> None:
    """Odd lengths, shuffled pages, rows that start in the middle, keys beyond `visible` poisoned with NaN."""
    torch.manual_seed(2)
    page_size, table = 4, torch.tensor([[5, 1, 7, 3], [0, 6, 2, 4]], dtype=torch.int32)
    keys = torch.full((8, page_size, kv_heads, dim), math.nan)
    values = torch.full_like(keys, math.nan)
    rows = [(3, 11, 13), (0, 1, 1)]  # start, end, visible
    dense = []
    for row, (_, _, visible) in enumerate(rows):
        k, v = torch.randn(2, visible, kv_heads, dim)
        for position in range(visible):
            page = int(table[row, position // page_size])
            keys[page, position % page_size], values[page, position % page_size] = k[position], v[position]
        dense.append((k, v))
    queries = torch.randn(sum(end - start for start, end, _ in rows), heads, dim)
    starts, seen = torch.tensor([0, 8, 9], dtype=torch.int32), torch.tensor([13, 1], dtype=torch.int32)
    got = reference.paged_attention(queries, keys, values, table, starts, seen)
    for (start, stop), (k, v) in zip([(0, 8), (8, 9)], dense, strict=True):
        k, v = (x.repeat_interleave(heads // kv_heads, dim=1).transpose(0, 1) for x in (k, v))
        weights = (queries[start:stop].transpose(0, 1) @ k.mT / dim**0.5).softmax(-1)
        torch.testing.assert_close(got[start:stop], (weights @ v).transpose(0, 1).flatten(1))


def test_a_row_attends_to_the_bit_as_a_longer_one_that_starts_a_page_or_more_before_it() -> None:
    """Choices of one prompt rely on it: one computes the prompt, the others start after its last whole page."""
    generator = torch.Generator().manual_seed(5)
    for prompt in (17, 64, 202, 770):
        for after in (1, 2, 3, 16, 33, 100):
            end, start = prompt + after, prompt // 16 * 16
            queries = torch.randn(end, 2, 32, generator=generator)
            keys, values = (torch.randn(-(-end // 16), 16, 2, 32, generator=generator) for _ in range(2))
            given = keys, values, torch.arange(len(keys), dtype=torch.int32)[None]
            seen = torch.tensor([end], dtype=torch.int32)
            whole, part = (
                reference.paged_attention(queries[first:], *given, torch.tensor([0, end - first]), seen)
                for first in (0, start)
            )
            assert torch.equal(whole[start:], part), (prompt, after)


@pytest.mark.parametrize(("block", "distance"), [(1, 0), (5, 0), (16, 0), (64, 0), (0, 17)])
def test_a_query_sees_the_keys_before_its_blocks_end_and_not_the_one_at_its_mask_offset(
    block: int, distance: int
) -> None:
    torch.manual_seed(6)
    start, end, dim = 20, 43, 8
    queries, (k, v) = torch.randn(end - start, 2, dim), torch.randn(2, 48, 1, dim)
    given = k.view(12, 4, 1, dim), v.view(12, 4, 1, dim), torch.arange(12, dtype=torch.int32)[None]
    positions, rows = torch.arange(start, end), torch.tensor([0, end - start])
    offsets = torch.tensor([distance]) if distance else None
    got = reference.paged_attention(queries, *given, rows, torch.tensor([end]), block, positions, offsets)
    seen = torch.arange(end) < ((positions // block + 1) * block if block else torch.full_like(positions, end))[:, None]
    if distance:
        seen &= torch.arange(end) != (positions - distance)[:, None]
    scores = torch.einsum("qhd,kd->hqk", queries, k[:end, 0]) / dim**0.5
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
    torch.testing.assert_close(got, torch.einsum("hqk,kd->qhd", weights, v[:end, 0]).flatten(1))
    with pytest.raises(ValueError, match="block_size needs positions"):
        reference.paged_attention(queries, *given, rows, torch.tensor([end]), 4)


@pytest.mark.parametrize("block", [pytest.param(1, marks=LONG), 4, 16, 32])
def test_a_block_attends_to_the_bit_alike_whatever_lies_before_it_in_its_row_or_after_it(block: int) -> None:
    """Keys and values of finished blocks are kept, and shared with other requests, because of it."""
    generator = torch.Generator().manual_seed(7)
    length = 96 if block < 32 else 192
    queries = torch.randn(length, 2, 32, generator=generator)
    keys, values = (torch.randn(length // 16, 16, 2, 32, generator=generator) for _ in range(2))
    given = keys, values, torch.arange(len(keys), dtype=torch.int32)[None]
    positions = torch.arange(length)

    def attention(start: int, end: int) -> Tensor:
        bounds, seen = torch.tensor([0, end - start]), torch.tensor([end], dtype=torch.int32)
        return reference.paged_attention(queries[start:end], *given, bounds, seen, block, positions[start:end])

    whole = attention(0, length)
    for start in range(0, length, block):
        for end in range(start + block, length + 1, block):
            assert torch.equal(whole[start:end], attention(start, end))


@pytest.mark.parametrize("kv_heads", [1, 4])
def test_a_causal_row_attends_to_the_bit_as_in_torch_under_a_causal_mask(kv_heads: int) -> None:
    """Each query attends alone, and logits stay within 1e-4 of a network's that sums in torch's order."""
    generator = torch.Generator().manual_seed(8)
    for length in (16, 96, 160):
        queries = torch.randn(length, 4, 32, generator=generator)
        keys, values = (torch.randn(length // 16, 16, kv_heads, 32, generator=generator) for _ in range(2))
        pages, seen = torch.arange(len(keys), dtype=torch.int32)[None], torch.tensor([length], dtype=torch.int32)
        given = queries, keys, values, pages, torch.tensor([0, length]), seen
        q, k, v = (x.reshape(1, length, -1, 32).transpose(1, 2) for x in (queries, keys, values))
        repeated = (x.repeat_interleave(4 // kv_heads, 1) for x in (k, v))
        whole = torch.nn.functional.scaled_dot_product_attention(q, *repeated, is_causal=True)
        got = reference.paged_attention(*given, 1, torch.arange(length))
        assert torch.equal(got, whole[0].transpose(0, 1).flatten(1)), length


def assert_attention(
    case: dict[str, Any],
    config: tiles.AttentionConfig,
    splits: int = 1,
    block_size: int = 0,
    mask_offsets: Tensor | None = None,
    causal_offsets: Tensor | None = None,
) -> None:
    given = [case[name] for name in GIVEN]
    needed = block_size or mask_offsets is not None or causal_offsets is not None
    rest = block_size, case["positions"] if needed else None, mask_offsets
    real = int(case["row_starts"][-1])
    want = reference.paged_attention(*given, *rest, causal_offsets=causal_offsets)[:real]
    plan = plan_of(case, config, splits)
    for _ in range(2):  # a launch leaves the plan as it was
        assert_near(device.paged_attention(*given, *rest, plan, causal_offsets)[:real], want)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "page_size", "splits"),
    part([(2, 2, 64, 16, 1), (7, 1, 16, 32, 2), (4, 2, 128, 64, 3), (1, 1, 16, 16, 3)], 2),
)
def test_attention_of_awkward_rows(heads: int, kv_heads: int, dim: int, page_size: int, splits: int) -> None:
    case = attention_case(ROWS, heads, kv_heads, dim, page_size, device=DEVICE, padding=2)
    assert_attention(case, tiles.AttentionConfig(16, 16, 4, 2), splits)


@pytest.mark.parametrize("splits", part([1, 3], 2))
def test_programs_take_turns_at_the_tiles_of_few_tokens(splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "PROGRAMS", 1)
    case = attention_case([(2, 40 + row) for row in range(9)], 4, 2, 64, 16, device=DEVICE, padding=3)
    assert_attention(case, tiles.AttentionConfig(16, 16, 4, 2), splits)


@pytest.mark.parametrize(("dtype", "splits"), crossed(NARROW, [1, 4]))
def test_attention_in_half_precision(dtype: torch.dtype, splits: int) -> None:
    case = attention_case([(20, 70), (2, 3)], 4, 2, 64, 16, dtype, DEVICE)
    assert_attention(case, tiles.AttentionConfig(32, 32, 4, 2), splits)


@pytest.mark.parametrize(("block", "splits"), part([(1, 1), (5, 3), (16, 1), (40, 3)], 2))
def test_attention_within_blocks(block: int, splits: int) -> None:
    """Queries of one tile see different numbers of keys."""
    case = attention_case([(30, 44), (1, 20), (9, 9), (17, 17), (0, 5)], 2, 1, 16, 16, device=DEVICE, padding=1)
    assert_attention(case, tiles.AttentionConfig(32, 16, 4, 2), splits, block)


@pytest.mark.parametrize("splits", part([1, 3], 2))
def test_causal_queries_need_not_ascend(splits: int) -> None:
    """As those of a row that is read in an order of its own, of which the last layer has some."""
    case = attention_case([(30, 44), (9, 9), (1, 20)], 4, 2, 16, 16, device=DEVICE, padding=1)
    shuffled = torch.cat([rows.flip(0) for rows in case["positions"][:40].split([30, 9, 1])])
    places = torch.cat([torch.arange(start, end).flip(0) for start, end in ((0, 30), (30, 39), (39, 40))])
    moved = case | {"positions": torch.cat((shuffled, case["positions"][40:])), "queries": case["queries"].clone()}
    moved["queries"][:40] = case["queries"][:40][places]
    assert_attention(moved, tiles.AttentionConfig(32, 16, 4, 2), splits, 1)
    ascending, reversed_ = (
        reference.paged_attention(*(each[name] for name in GIVEN), 1, each["positions"]) for each in (case, moved)
    )
    assert torch.equal(reversed_[:40], ascending[:40][places])


@pytest.mark.parametrize(("block", "splits"), [(0, 3), (16, 1)])
def test_attention_that_does_not_see_one_key(block: int, splits: int) -> None:
    """In some rows, each query another one, near or far from it."""
    case = attention_case([(30, 44), (1, 20), (9, 19), (17, 50)], 4, 2, 16, 16, device=DEVICE, padding=1)
    mask_offsets = torch.tensor([14, 0, 3, 33, 0], dtype=torch.int32, device=DEVICE)
    assert_attention(case, tiles.AttentionConfig(32, 16, 4, 2), splits, block, mask_offsets)


WINDOWS = itertools.product((False, True), [(0, 1), (1, 1), (7, 3), (40, 2), (200, 3)])


@pytest.mark.parametrize(("canvases", "sizes"), part(WINDOWS, 3, seed="windows"))
def test_attention_within_a_window(canvases: bool, sizes: tuple[int, int]) -> None:
    """Causal rows, and canvases whose queries all see the same keys, which reach further back than a page."""
    size, splits = sizes
    case = attention_case([(30, 44), (1, 20), (9, 9), (17, 90), (0, 5)], 4, 2, 16, 16, device=DEVICE, padding=1)
    given, real = [case[name] for name in GIVEN], int(case["row_starts"][-1])
    rows = [14, -1, -1, 73, -1, -1] if canvases else [-1] * 6
    window = tiles.AttentionWindow(size, torch.tensor(rows, dtype=torch.int32, device=DEVICE) if canvases else None)
    more = 1, case["positions"], None
    plan = plan_of(case, tiles.AttentionConfig(32, 16, 4, 2), splits)
    want = reference.paged_attention(*given, *more, None, window=window, scale=1.0)[:real]
    assert_near(device.paged_attention(*given, *more, plan, window=window, scale=1.0)[:real], want)
    assert not torch.allclose(want, reference.paged_attention(*given, *more)[:real])  # its scale, at least


@pytest.mark.parametrize("parts", part([2, 4], 2))
def test_programs_share_the_query_heads_of_a_key_head(parts: int) -> None:
    case = attention_case(ROWS, 8, 2, 16, 16, device=DEVICE, padding=2)
    assert_attention(case, tiles.AttentionConfig(16, 16, 4, 2, parts), 2)
    uneven = tiles.AttentionConfig(16, 16, 4, 2, parts=3)
    with pytest.raises(ValueError, match="3 tiles of 16 cannot hold 4 heads"):
        device.paged_attention(
            *(case[name] for name in GIVEN), plan=tiles.AttentionPlan(uneven, torch.zeros((1, 4)).int())
        )


def test_a_window_is_that_of_causal_rows_alone() -> None:
    case = attention_case([(3, 20)], 2, 2, 16, 16, device=DEVICE)
    given = [case[name] for name in GIVEN]
    with pytest.raises(ValueError, match="window goes with block_size 1"):
        device.paged_attention(*given, 4, case["positions"], window=tiles.AttentionWindow(8))


def fp8_case(*given: Any, **named: Any) -> dict[str, Any]:
    case = attention_case(*given, device=DEVICE, **named)
    return case | {name: in_fp8(case[name]) for name in ("keys", "values")}


def test_keys_and_values_in_fp8_are_multiplied_by_the_scales_of_their_position_and_head() -> None:
    """To the bit the attention to the numbers that FP8 can hold, which are near those that it was given."""
    case = attention_case([(3, 40), (9, 9)], 4, 2, 16, 16)
    plain, in_pages = ([case[name] for name in GIVEN] for _ in range(2))
    for number in (1, 2):
        in_pages[number] = kept = in_fp8(plain[number])
        plain[number] = kept.numbers.float() * kept.scales.transpose(1, 2)[..., None]
        ratio = (plain[number] / case[GIVEN[number]]).nan_to_num(1)
        assert 1e-3 < (ratio - 1).abs().max() < 2**-4 + 2**-9  # half of the last of three bits, in normal numbers
    got = reference.paged_attention(*in_pages)
    assert torch.equal(got, reference.paged_attention(*plain))
    assert 1e-3 < (got - reference.paged_attention(*(case[name] for name in GIVEN))).abs().max() < 0.2


@pytest.mark.parametrize(("block", "splits", "dtype"), [(0, 1, torch.float32), (5, 3, NARROW[-1])])
def test_attention_to_keys_and_values_in_fp8(block: int, splits: int, dtype: torch.dtype) -> None:
    case = fp8_case([(30, 44), (1, 20), (9, 9), (0, 5)], 6, 2, 32, 16, dtype, padding=1)
    case["values"].scales.mul_(1e-4)  # where float16 has few bits left, were weights multiplied by it
    assert_attention(case, tiles.AttentionConfig(32, 16, 4, 2), splits, block)


def test_programs_take_turns_at_keys_in_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "PROGRAMS", 1)
    case = fp8_case([(2, 40 + row) for row in range(5)], 4, 2, 64, 32, padding=3)
    assert_attention(case, tiles.AttentionConfig(16, 16, 4, 2), 2)


def test_rows_that_see_some_keys_in_fp8() -> None:
    """Copies that do not see one key each, causal rows with places that nobody has computed, windows and canvases."""
    rows = [(30, 44), (1, 20), (9, 19), (6, 70)]
    case, config = fp8_case(rows, 4, 2, 16, 16), tiles.AttentionConfig(32, 16, 4, 2)

    def int32(*numbers: int) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=DEVICE)

    assert_attention(case, config, 2, 16, int32(14, 0, 3, 33))
    for kv in (case["keys"], case["values"]):
        for place in range(29, 64):
            kv.scales[case["page_table"][3, place // 16], :, place % 16] = math.nan
    assert_attention(case, config, 2, causal_offsets=int32(0, -1, 9, 40))

    case = fp8_case(rows, 4, 2, 16, 16)
    given, plan = [case[name] for name in GIVEN], plan_of(case, config, 2)
    window = tiles.AttentionWindow(7, int32(14, -1, -1, 64))
    want = reference.paged_attention(*given, 1, case["positions"], window=window, scale=1.0)
    assert_near(device.paged_attention(*given, 1, case["positions"], None, plan, window=window, scale=1.0), want)


def test_keys_in_fp8_go_with_values_in_fp8() -> None:
    case = attention_case([(3, 20)], 2, 2, 16, 16, device=DEVICE)
    with pytest.raises(ValueError, match="keys and values must both be in FP8, or neither"):
        device.paged_attention(*(in_fp8(case[name]) if name == "keys" else case[name] for name in GIVEN))


def test_attention_plans_itself() -> None:
    case = attention_case([(3, 20)], 2, 2, 16, 16, device=DEVICE)
    given = [case[name] for name in GIVEN]
    assert_near(device.paged_attention(*given), reference.paged_attention(*given))


def test_tiles_cover_each_query_once_and_longest_rows_come_first() -> None:
    sizes, visible = np.array([5, 0, 33, 1]), np.array([5, 9, 33, 900])
    laid = tiles.row_tiles(sizes, 8, tiles.tile_capacity(39, 4, 8), visible)
    real = laid[laid[:, 0] >= 0]
    assert real[:, 0].tolist() == [3, 2, 2, 2, 2, 2, 0]
    covered = [
        (row, q)
        for row, first, split, splits in real
        if (split, splits) == (0, 1)
        for q in range(first, min(first + 8, sizes[row]))
    ]
    assert sorted(covered) == [(row, q) for row, size in enumerate(sizes) for q in range(size)]
    with pytest.raises(ValueError, match="7 tiles do not fit a capacity of 6"):
        tiles.row_tiles(sizes, 8, 6)


def test_no_division_into_rows_exceeds_the_tile_capacity() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows, queries = int(rng.integers(1, 9)), int(rng.integers(1, 9))
        sizes = rng.integers(0, 40, rows)
        tiles.row_tiles(sizes, queries, tiles.tile_capacity(int(sizes.sum()), rows, queries))


def splits_of(sizes: list[int], visible: list[int], groups: int, queries: int = 16) -> list[int]:
    """The splits of each row, of turns of 64 keys."""
    counts, turns = (-(-np.array(numbers) // size) for numbers, size in ((sizes, queries), (visible, 64)))
    return tiles.key_splits(turns, tiles.turn_share(int(counts @ turns), groups)).tolist()


def test_rows_have_several_splits_of_keys_where_programs_would_be_idle() -> None:
    assert splits_of([16], [512], 32) == [4]
    assert splits_of([16], [64], 32) == [1]
    assert splits_of([16] * 64, [1024] * 64, 8) == [1] * 64


def test_a_row_that_sees_far_has_several_splits_beside_others_that_have_one() -> None:
    assert splits_of([128, *[6] * 8], [16384, *[1024] * 8], 8) == [4, *[1] * 8]
    assert splits_of([128, *[6] * 64], [16384, *[1024] * 64], 8) == [3, *[1] * 64]


def test_every_split_of_a_tile_is_beside_the_one_before_it() -> None:
    laid = tiles.row_tiles(np.array([9, 3]), 4, 10, np.array([5, 900]), np.array([1, 3]))
    assert laid.tolist() == [
        *([1, 0, split, 3] for split in range(3)),
        *([0, first, 0, 1] for first in (0, 4, 8)),
        *[[-1] * 4] * 4,
    ]


def test_the_splits_of_any_rows_fit_their_room() -> None:
    """The graph's list of tiles, and the memory for what each split has found."""
    rng = np.random.default_rng(1)
    for _ in range(300):
        rows, queries, groups = (int(rng.integers(1, most)) for most in (90, 65, 129))
        sizes = rng.integers(0, 1 + int(rng.integers(1, 400)), rows)
        visible = sizes + (rng.pareto(1.0, rows) * 500).astype(np.int64) % 32768
        counts, turns = -(-sizes // queries), -(-visible // 64)
        splits = tiles.key_splits(turns, tiles.turn_share(int(counts @ turns), groups))
        room = tiles.most_split_tiles(groups)
        capacity = tiles.tile_capacity(int(sizes.sum()), rows, queries) + room
        laid = tiles.row_tiles(sizes, queries, capacity, visible, splits)
        assert (laid[room:, 3] <= 1).all()


HEAD_DIMS = [16, 32, 64, 128, 256, 512]


@pytest.mark.parametrize("dtype", [torch.float32, *NARROW], ids=str)
@pytest.mark.parametrize("dim", HEAD_DIMS)
@pytest.mark.parametrize("group", [1, 2, 7, 8, 16])
def test_a_program_has_room_in_shared_memory(dtype: torch.dtype, dim: int, group: int) -> None:
    """Tiles of all sizes of launches, for all heads."""
    chosen = {
        tiles.attention_config(tokens, rows, 2 * group, 2, dim, dtype.itemsize)
        for tokens in (1, 16, 64, 256, 4096)
        for rows in (1, 16)
    }
    chosen.add(tiles.fixed_config(2 * group, 2, dim, dtype.itemsize))
    for config in chosen:
        assert tiles.shared_bytes(config, dim, dtype.itemsize) <= 227 * 1024
        assert config.block_m >= group
        assert config.block_n >= 16
        if dtype.itemsize == 2 or dim < 512:  # as fast as they were measured
            assert (config.block_n, config.stages) == ((64, 3) if dim * dtype.itemsize <= 256 else (32, 2))


@pytest.mark.parametrize("dtype", [torch.float32, *NARROW], ids=str)
def test_heads_of_canvases_have_room_for_their_tiles(dtype: torch.dtype) -> None:
    """DiffusionGemma's: of 512 in the layers that see all keys, where the others have 256."""
    for own in (tiles.fixed_config(16, 8, 256, dtype.itemsize), CANVAS_TILES):
        for dim in (256, 512):
            config = tiles.fitting(own, dim, dtype.itemsize)
            assert tiles.shared_bytes(config, dim, dtype.itemsize) <= 227 * 1024
            assert (config == own) == (tiles.shared_bytes(own, dim, dtype.itemsize) <= 227 * 1024)
            assert config.block_n >= 16


# Bytes that Triton 3.9 takes for a program of a GPU of compute capability 9.0.
COMPILED = [
    ((64, 64, 4, 3), 128, 2, 114_744),
    ((32, 32, 4, 2), 256, 2, 67_608),
    ((32, 32, 8, 2), 512, 2, 133_144),
    ((64, 64, 4, 3), 64, 4, 98_336),
    ((16, 32, 4, 2), 128, 4, 59_416),
    ((32, 32, 4, 2), 128, 4, 69_656),
    ((32, 32, 4, 2), 256, 4, 135_192),
    ((16, 32, 8, 2), 512, 4, 231_448),
    ((32, 32, 8, 2), 512, 4, 266_264),
    ((32, 16, 8, 2), 512, 4, 165_912),
    ((64, 64, 4, 1), 256, 4, 147_456),
    ((64, 32, 8, 1), 512, 4, 204_800),
    ((64, 16, 8, 1), 512, 4, 167_936),
]


@pytest.mark.parametrize(("config", "dim", "element_bytes", "compiled"), COMPILED)
def test_shared_memory_is_never_more_than_computed(
    config: tuple[int, int, int, int], dim: int, element_bytes: int, compiled: int
) -> None:
    assert compiled <= tiles.shared_bytes(tiles.AttentionConfig(*config), dim, element_bytes) <= 1.5 * compiled


@pytest.mark.parametrize(("block", "splits"), [(0, 1), (16, 3)])
def test_attention_of_causal_rows_beside_others(block: int, splits: int) -> None:
    """A query sees the keys before its own place, or before one so far from it, and its own key."""
    unseen = torch.arange(29, 64, device=DEVICE) % 16
    case = attention_case([(30, 44), (1, 20), (9, 19), (6, 70), (0, 5)], 4, 2, 16, 16, device=DEVICE, padding=1)
    offsets = torch.tensor([0, -1, 9, 40, 0, -1], dtype=torch.int32, device=DEVICE)
    for kv in (case["keys"], case["values"]):  # nobody has computed the places between those of the fourth row
        kv.flatten(0, 1)[case["page_table"][3].long().repeat_interleave(16)[29:64] * 16 + unseen] = math.nan
    assert_attention(case, tiles.AttentionConfig(32, 16, 4, 2), splits, block, causal_offsets=offsets)


def test_a_causal_row_is_plain_causal_attention_and_reads_nothing_between() -> None:
    """Against torch's own, with an offset as if the keys in between were not there: here they are NaN."""
    case = attention_case([(40, 40)], 2, 2, 32, 16)
    given, rest = [case[name] for name in GIVEN], (0, case["positions"], None, None)
    keys, values = (case[name][case["page_table"][0].long()].flatten(0, 1)[:40] for name in ("keys", "values"))
    q, k, v = (part.transpose(0, 1)[None] for part in (case["queries"], keys, values))
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1)
    offsets = torch.zeros(1, dtype=torch.int32)
    assert_near(reference.paged_attention(*given, *rest, offsets), want.flatten(1))

    replica = [case["queries"][36:], *given[1:4], torch.tensor([0, 4], dtype=torch.int32), case["visible"]]
    for number in (1, 2):
        replica[number] = given[number].clone()
        replica[number].flatten(0, 1)[
            case["page_table"][0].long().repeat_interleave(16)[14:36] * 16 + torch.arange(14, 36) % 16
        ] = math.nan
    got = reference.paged_attention(
        *replica, 0, case["positions"][36:], None, None, torch.tensor([26], dtype=torch.int32)
    )
    seen = [[*range(10 + number), 36 + number] for number in range(4)]
    want = torch.cat(
        [
            torch.nn.functional.scaled_dot_product_attention(q[:, :, 36 + n : 37 + n], k[:, :, s], v[:, :, s])[0]
            for n, s in enumerate(seen)
        ],
        dim=1,
    ).transpose(0, 1)
    assert_near(got, want.flatten(1))
