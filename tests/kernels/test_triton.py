"""Each Triton kernel against its torch twin: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

# The interpreter of older ones fails on loops with the numpy of today.
pytest.importorskip("triton", minversion="3.5" if torch.cuda.is_available() else "3.9")

from asynclane.kernels import canvases as plain_canvases
from asynclane.kernels import logits as on_logits
from asynclane.kernels import measures as plain_measures
from asynclane.kernels import reference, tiles
from asynclane.kernels.prediction import Prediction
from asynclane.kernels.triton import (
    attention,
    biases,
    commit,
    confidence,
    elementwise,
    measures,
    restrictions,
)
from asynclane.kernels.triton import canvases as device_canvases

from ..support.kernel_cases import attention_case, draws_of, plan_of, some_logits, span_case

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
# The interpreter cuts bf16 off instead of rounding it, and cannot multiply matrices of it.
NARROW = [torch.float16, torch.bfloat16] if DEVICE == "cuda" else [torch.float16]
NO_IDS = torch.tensor([], dtype=torch.int64, device=DEVICE)


def assert_near(got: Tensor, want: Tensor, tolerance: float | None = None) -> None:
    limit = TOLERANCE[want.dtype] if tolerance is None else tolerance
    torch.testing.assert_close(got.float(), want.float(), atol=limit, rtol=limit)


def assert_attention(
    case: dict[str, Tensor], config: tiles.AttentionConfig, block: int = 0, hides: Tensor | None = None
) -> None:
    given = [case[name] for name in ("queries", "keys", "values", "page_table", "row_starts", "visible")]
    positions = case["positions"] if block or hides is not None else None
    real = int(case["row_starts"][-1])
    want = reference.paged_attention(*given, block, positions, hides)[:real]
    got = attention.paged_attention(*given, block, positions, hides, plan_of(case, config))[:real]
    assert_near(got, want)


ROWS = [(5, 40), (0, 9), (1, 1), (18, 33), (3, 16)]


@pytest.mark.parametrize("splits", [1, 2, 3])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "page_size"), [(2, 2, 64, 16), (7, 1, 16, 32), (4, 2, 128, 64), (1, 1, 16, 16)]
)
def test_attention_of_awkward_rows(heads: int, kv_heads: int, dim: int, page_size: int, splits: int) -> None:
    case = attention_case(ROWS, heads, kv_heads, dim, page_size, device=DEVICE, padding=2)
    assert_attention(case, tiles.AttentionConfig(16, 16, 4, 2, splits))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("splits", [1, 4])
def test_attention_in_half_precision(dtype: torch.dtype, splits: int) -> None:
    case = attention_case([(20, 70), (2, 3)], 4, 2, 64, 16, dtype, DEVICE)
    assert_attention(case, tiles.AttentionConfig(32, 32, 4, 2, splits))


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("block", [1, 5, 16, 40])
def test_attention_within_blocks(block: int, splits: int) -> None:
    """Queries of one tile see different numbers of keys."""
    case = attention_case([(30, 44), (1, 20), (9, 9), (17, 17), (0, 5)], 2, 1, 16, 16, device=DEVICE, padding=1)
    assert_attention(case, tiles.AttentionConfig(32, 16, 4, 2, splits), block)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("block", [0, 16])
def test_attention_that_does_not_see_one_key(block: int, splits: int) -> None:
    """In some rows, each query another one, near or far from it."""
    case = attention_case([(30, 44), (1, 20), (9, 19), (17, 50)], 4, 2, 16, 16, device=DEVICE, padding=1)
    hides = torch.tensor([14, 0, 3, 33, 0], dtype=torch.int32, device=DEVICE)
    assert_attention(case, tiles.AttentionConfig(32, 16, 4, 2, splits), block, hides)


def test_attention_plans_itself() -> None:
    case = attention_case([(3, 20)], 2, 2, 16, 16, device=DEVICE)
    given = [case[name] for name in ("queries", "keys", "values", "page_table", "row_starts", "visible")]
    assert_near(attention.paged_attention(*given), reference.paged_attention(*given))


def test_tiles_cover_each_query_once_and_longest_rows_come_first() -> None:
    sizes, visible = np.array([5, 0, 33, 1]), np.array([5, 9, 33, 900])
    laid = tiles.row_tiles(sizes, 8, tiles.tile_capacity(39, 4, 8), visible)
    real = laid[laid[:, 0] >= 0]
    assert real[:, 0].tolist() == [3, 2, 2, 2, 2, 2, 0]
    covered = [(row, q) for row, first in real for q in range(first, min(first + 8, sizes[row]))]
    assert sorted(covered) == [(row, q) for row, size in enumerate(sizes) for q in range(size)]
    with pytest.raises(ValueError, match="7 tiles do not fit a capacity of 6"):
        tiles.row_tiles(sizes, 8, 6)


@pytest.mark.parametrize("seed", range(20))
def test_no_division_into_rows_exceeds_the_tile_capacity(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, queries = int(rng.integers(1, 9)), int(rng.integers(1, 9))
    sizes = rng.integers(0, 40, rows)
    tiles.row_tiles(sizes, queries, tiles.tile_capacity(int(sizes.sum()), rows, queries))


def test_few_tiles_over_many_keys_are_split() -> None:
    assert tiles.attention_config(64, 1, 512, 32, 32, 128).splits == 4
    assert tiles.attention_config(64, 1, 64, 32, 32, 128).splits == 1
    assert tiles.attention_config(1024, 16, 512, 32, 32, 128).splits == 1


@pytest.mark.parametrize("dtype", [torch.float32, *NARROW])
@pytest.mark.parametrize(("tokens", "dim"), [(3, 40), (1, 64)])
def test_norms_and_gate(tokens: int, dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, residual = (torch.randn(tokens, dim, device=DEVICE).to(dtype) for _ in range(2))
    weight = torch.randn(dim, device=DEVICE).to(dtype)
    assert_near(elementwise.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    got, want = (ops.add_rms_norm(x, residual, weight, 1e-5) for ops in (elementwise, reference))
    assert_near(got[0], want[0])
    assert torch.equal(got[1], want[1])
    assert_near(elementwise.swiglu(x), reference.swiglu(x))


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 64), (7, 1, 16), (3, 1, 12)])
def test_rope_writes_keys_and_values_but_not_of_padding(heads: int, kv_heads: int, dim: int) -> None:
    torch.manual_seed(1)
    places = torch.tensor([9, -1, 0, 5, -1], device=DEVICE)
    qkv = torch.randn(len(places), heads + 2 * kv_heads, dim, device=DEVICE)
    cos, sin = torch.randn(2, len(places), dim, device=DEVICE)
    done = []
    for ops in (reference, elementwise):
        keys = torch.full((3, 4, kv_heads, dim), 7.0, device=DEVICE)
        values = keys.clone()
        done.append((ops.rope_write_kv(qkv, cos, sin, keys, values, places), keys, values))
    for want, got in zip(*done, strict=True):
        assert_near(got, want)
    assert (done[1][1].flatten(0, 1)[[1, 2, 3, 4, 6, 7, 8, 10, 11]] == 7).all()


def test_embed() -> None:
    canvases = torch.arange(12, device=DEVICE).view(3, 4)
    slots, positions = torch.tensor([2, 0, 2], device=DEVICE), torch.tensor([1, 3, 0], device=DEVICE)
    table = torch.randn(12, 40, device=DEVICE)
    assert torch.equal(
        elementwise.embed(canvases, slots, positions, table), reference.embed(canvases, slots, positions, table)
    )


def assert_predictions(got: Prediction, want: Prediction) -> None:
    for name, wanted, tolerance in zip(Prediction._fields, want, (0, 1e-5, 0, 1e-5, 1e-5, 2e-5), strict=True):
        torch.testing.assert_close(
            getattr(got, name).double(),
            wanted.double(),
            atol=1e-12 if tolerance else 0,
            rtol=tolerance,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def assert_predict(logits: Tensor, banned: list[int], ends: list[int], **launch: Any) -> Prediction:
    draws = launch.pop("draws", None)
    endless = torch.arange(len(logits), device=DEVICE) % 2 == 0
    given = torch.tensor(banned, dtype=torch.int64, device=DEVICE), torch.tensor(ends, dtype=torch.int64, device=DEVICE)
    want = reference.predict(logits.clone(), *given, endless, draws)
    got = confidence.predict(logits, *given, endless, draws, **launch)
    assert_predictions(got, want)
    return got


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("vocabulary", "splits"), [(300, 1), (2500, 2), (4096, 3), (5000, 4)])
def test_predictions(vocabulary: int, splits: int, dtype: torch.dtype) -> None:
    logits = some_logits(DEVICE, 4, vocabulary, dtype)
    logits[0, [5, 200]] = 60.0  # banned
    logits[1, [1, vocabulary - 1]] = 50.0  # a tie, and an end
    logits[2, 7] = 40.0  # an end where none may be
    logits[3, [7, 8]] = 40.0
    got = assert_predict(logits, [200, 5], [7, vocabulary - 1], splits=splits)
    assert got.proposals[1] == 1
    assert got.proposals[2] == 7
    assert got.tokens[2] != 7


def test_predictions_of_flat_and_of_falling_and_of_near_certain_rows() -> None:
    logits = torch.zeros(3, 1500, device=DEVICE)
    logits[1] = -torch.arange(1500.0, device=DEVICE)
    logits[2, 1400] = 30.0
    got = assert_predict(logits, [], [], splits=1)
    assert got.entropy[0].item() == pytest.approx(math.log(1500), rel=1e-5)
    assert 0 < 1 - got.confidence[2].item() < 1e-8


def test_predictions_of_nothing() -> None:
    none = torch.zeros(0, dtype=torch.bool, device=DEVICE)
    assert not len(confidence.predict(some_logits(DEVICE, 0, 50, torch.float32), NO_IDS, NO_IDS, none).tokens)


@pytest.mark.filterwarnings("ignore:All-NaN")  # of the interpreter
def test_a_row_of_nan_yields_ids_of_the_vocabulary_and_spares_its_neighbours() -> None:
    logits = some_logits(DEVICE, 4, 1100, torch.float32)
    want = logits.argmax(-1)
    logits[1:3] = math.nan
    draws = draws_of(4, DEVICE, temperature=[0.0, 0.0, 1.0, 0.0])
    endless = torch.ones(4, dtype=torch.bool, device=DEVICE)
    got = confidence.predict(logits, NO_IDS, torch.zeros(1, dtype=torch.int64, device=DEVICE), endless, draws)
    assert ((got.tokens >= 0) & (got.tokens < 1100)).all()
    assert torch.equal(got.proposals[[0, 3]], want[[0, 3]])
    assert got.confidence.isnan().tolist() == [False, True, True, False]


@pytest.mark.parametrize(("dtype", "splits"), [(torch.float32, 3), (torch.bfloat16, 1)])
def test_draws_equal_the_twin(dtype: torch.dtype, splits: int) -> None:
    count = 8
    draws = draws_of(
        count,
        DEVICE,
        temperature=[0.0, 1.0, 0.7, 1.3, 1e-45, 1.0, 2.0, 1.0],
        top_p=[1.0, 1.0, 0.9, 0.5, 0.9, 1.0, 0.8, 1e-6],
        top_k=[0, 0, 0, 20, 0, 3, 40, 0],
        min_p=[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.05, 0.0],
        seeds=[1, (1 << 63) - 5, -9, 4 << 40, 3, 3, 3, 3],
        positions=list(range(count)),
        steps=[0, 0, 5, 6, 7, 1, 1, 1],
    )
    logits = some_logits(DEVICE, count, 4200, dtype)
    got = assert_predict(logits, [4], [7], draws=draws, splits=splits)
    greedy = logits.float().index_fill(-1, torch.tensor([4], device=DEVICE), -math.inf).argmax(-1)
    assert (got.proposals[[0, 4, 7]] == greedy[[0, 4, 7]]).all()


def test_draws_without_narrowing() -> None:
    draws = draws_of(3, DEVICE, temperature=[1.0, 0.0, 0.6], min_p=[0.0, 0.0, 0.2])
    assert_predict(some_logits(DEVICE, 3, 1100, torch.float32), [], [], draws=draws, narrowed=False, splits=1)


def test_top_k_and_top_p_draw_only_what_they_keep() -> None:
    count = 20
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1], device=DEVICE).log().bfloat16().expand(count, 4).contiguous()
    for kept, knobs in [({0, 1}, {"top_p": 0.65}), ({0, 1, 2}, {"top_k": 3}), ({0}, {"min_p": 0.9})]:
        draws = draws_of(count, DEVICE, temperature=1.0, positions=list(range(count)), **knobs)
        nobody = torch.zeros(count, dtype=torch.bool, device=DEVICE)
        assert set(confidence.predict(logits, NO_IDS, NO_IDS, nobody, draws).proposals.tolist()) == kept


@pytest.mark.parametrize("count", [1, 128, 300])
def test_measures_equal_the_twin(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    draws = draws_of(
        count, DEVICE, seeds=[(7919 * n << 40) - n for n in range(count)], positions=list(range(count)), steps=5
    )
    logits, ends = some_logits(DEVICE, count, 90, torch.float32), torch.arange(40, device=DEVICE)
    endless = torch.rand(count, generator=generator).to(DEVICE) < 0.5
    found = reference.predict(logits, NO_IDS, ends, endless, draws)
    kinds = torch.randint(0, 5, (count,), generator=generator, dtype=torch.int32).to(DEVICE)
    noise = torch.tensor([0.0, 0.0, 0.3, 2.0], device=DEVICE)[torch.randint(0, 4, (count,), generator=generator)]
    want = plain_measures.measure(found, kinds, noise, draws)
    got = measures.measure(found, kinds, noise, draws)
    plain = noise == 0
    assert torch.equal(got[plain], want[plain])
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_measures_of_nothing() -> None:
    none = torch.zeros(0, device=DEVICE)
    nothing = confidence.predict(some_logits(DEVICE, 0, 50, torch.float32), NO_IDS, NO_IDS, none.bool())
    assert not len(measures.measure(nothing, none.int(), none, draws_of(0, DEVICE)))


@pytest.mark.parametrize("sizes", [[1], [64], [3, 0, 1, 130, 65, 9, 0]])
@pytest.mark.parametrize("seed", [0, 1])
def test_transfer_and_commit(sizes: list[int], seed: int) -> None:
    case = span_case(sizes, DEVICE, seed)
    want = reference.transfer(**case)
    assert torch.equal(commit.transfer(**case), want)

    total, spare, mask_id = sum(sizes), 2, 11
    slots = torch.arange(total + spare, device=DEVICE) % 3
    positions = torch.arange(total + spare, device=DEVICE)
    canvases = torch.zeros((4, total + spare), dtype=torch.int64, device=DEVICE)
    canvases[slots[:total], positions[:total]] = torch.where(case.pop("open_"), mask_id, 5)
    tokens = torch.arange(100, 100 + total + spare, device=DEVICE)
    scores = torch.cat((case.pop("confidence"), torch.ones(spare, dtype=torch.float64, device=DEVICE)))
    twin = canvases.clone()
    held = reference.commit(twin, slots[:total], positions[:total], tokens[:total], scores[:total], mask_id, **case)
    got = commit.commit(canvases, slots, positions, tokens, scores, mask_id, **case)
    assert torch.equal(got[:total], held)
    assert torch.equal(canvases, twin)


def test_all_commit_and_none() -> None:
    for threshold, want in [(0.0, True), (2.0, False)]:
        case = span_case([70], DEVICE)
        case |= {"open_": torch.ones_like(case["open_"]), "threshold": torch.tensor([threshold], device=DEVICE)}
        case |= {name: torch.zeros_like(case[name]) for name in ("sure", "factor", "last_free")}
        assert (commit.transfer(**case) == want).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_biases_equal_the_twin_and_touch_nothing_else(dtype: torch.dtype) -> None:
    logits = some_logits(DEVICE, 80, 1100, dtype)
    begins, ends = (
        torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in ([0, 40, 41, 50, 0], [40, 41, 41, 80, 0])
    )
    starts = torch.tensor([0, 300, 301, 305, 320, 320], dtype=torch.int32, device=DEVICE)
    ids = torch.cat([torch.randperm(1100)[:300], torch.arange(20)]).int().to(DEVICE)
    deltas = torch.linspace(-3, 3, 320, device=DEVICE)
    deltas[::7] = -math.inf
    want, got = logits.clone(), logits.clone()
    on_logits.adjust(want, begins, ends, starts, ids, deltas)
    biases.adjust(got, begins, ends, starts, ids, deltas)
    assert torch.equal(got, want)
    assert (want != logits).sum() == 40 * 300 + 1 + 30 * 15
    assert (want[0] == -math.inf).sum() == 43


@pytest.mark.parametrize("count", [1, 5, 300])
def test_what_the_host_tells_is_written_and_nothing_else(count: int) -> None:
    canvases = torch.arange(4 * 200, device=DEVICE).view(4, 200)
    places = torch.randperm(4 * 200, device=DEVICE)[:count]
    slots, positions = places // 200, places % 200
    tokens = torch.where(torch.arange(count, device=DEVICE) % 3 == 2, -1, places + 5000).int()
    positions = torch.where(tokens < 0, -1, positions)  # as padding is
    want, got = canvases.clone(), canvases.clone()
    plain_canvases.tell(want, slots, positions, tokens)
    device_canvases.tell(got, slots, positions, tokens)
    assert torch.equal(got, want)
    assert (want != canvases).sum() == (tokens >= 0).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("vocabulary", "words"), [(1100, 35), (1024, 32), (33, 2), (2049, 70)])
def test_restrictions_equal_the_twin_and_touch_nothing_else(dtype: torch.dtype, vocabulary: int, words: int) -> None:
    logits = some_logits(DEVICE, 9, vocabulary, dtype)
    places = torch.tensor([3, -1, 8, 0, -1], dtype=torch.int32, device=DEVICE)
    masks = torch.randint(-(2**31), 2**31, (5, words), device=DEVICE).int()
    masks[3] = 0
    want, got = logits.clone(), logits.clone()
    on_logits.restrict(want, places, masks)
    restrictions.restrict(got, places, masks)
    assert torch.equal(got, want)
    for row, place in enumerate(places.tolist()):
        if place >= 0:
            bits = np.unpackbits(masks[row].cpu().numpy().view(np.uint8), bitorder="little")[:vocabulary]
            assert ((want[place] > -math.inf).cpu().numpy() == bits.astype(bool)).all()
    others = [row for row in range(9) if row not in (3, 8, 0)]
    assert torch.equal(want[others], logits[others])
