"""The torch kernels against the plainest form of what they promise."""

from __future__ import annotations

import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from asynclane.kernels import measures
from asynclane.kernels import reference as ops
from asynclane.kernels.linear import linear
from asynclane.kernels.noise import gumbel, position_noise, token_noise, uniform

from ..support.kernel_cases import draws_of

NO_IDS = torch.tensor([], dtype=torch.int64)


def transfer_plainly(
    confidence: list[float], open_: list[bool], sure: int, threshold: float, factor: float, last_free: bool
) -> list[bool]:
    """`DeviceCommitRule`, word for word, on one span."""
    ranked = sorted((i for i, o in enumerate(open_) if o), key=lambda i: (-confidence[i], i))
    commit = [False] * len(confidence)
    for n, position in enumerate(ranked, start=1):
        free = n <= sure or (last_free and n == len(ranked))
        if not free and confidence[position] < threshold - factor / (n + 1):
            break
        commit[position] = True
    return commit


def test_transfer_follows_its_rule_on_random_spans() -> None:
    rng = random.Random(5)
    for _ in range(300):
        spans = []
        for _ in range(rng.randint(1, 5)):
            size = rng.randint(1, 9)
            spans.append(
                (
                    [rng.choice([rng.random(), 0.5, 1.0]) for _ in range(size)],
                    [rng.random() < 0.7 for _ in range(size)],
                    rng.randint(0, 3),
                    rng.choice([0.5, 1.0, math.inf]),
                    rng.choice([0.0, 1.0]),
                    rng.random() < 0.5,
                )
            )
        want = [commit for span in spans for commit in transfer_plainly(*span)]
        got = ops.transfer(
            torch.tensor([c for span in spans for c in span[0]], dtype=torch.float64),
            torch.tensor([o for span in spans for o in span[1]]),
            torch.tensor([0, *torch.tensor([len(span[0]) for span in spans]).cumsum(0)], dtype=torch.int32),
            torch.tensor([span[2] for span in spans], dtype=torch.int32),
            torch.tensor([span[3] for span in spans]),
            torch.tensor([span[4] for span in spans]),
            torch.tensor([span[5] for span in spans]),
        )
        assert got.tolist() == want, spans


def test_a_proposal_is_never_a_banned_token_and_its_probability_is_the_softmax() -> None:
    torch.manual_seed(0)
    logits = torch.randn(50, 33) * 5
    logits[:, 7] += 100
    tokens, probability = ops.propose(logits.clone(), torch.tensor([7]))
    allowed = logits.double().clone()
    allowed[:, 7] = -math.inf
    want = allowed.softmax(-1).max(-1)
    assert torch.equal(tokens, want.indices)
    torch.testing.assert_close(probability, want.values, atol=1e-6, rtol=0)


def test_probabilities_close_to_one_stay_apart() -> None:
    """A float32 softmax would round both to 1 and lose their order."""
    logits = torch.tensor([[30.0, 0.0], [31.0, 0.0]])
    _, probability = ops.propose(logits, torch.tensor([], dtype=torch.int64))
    assert probability[0] < probability[1] < 1


def draw(logits: Tensor, temperature: float, top_p: float, seed: int, position: int, step: int) -> Tensor:
    count = len(logits)
    return ops.sample(
        logits,
        torch.full((count,), temperature),
        torch.full((count,), top_p),
        torch.full((count,), seed),
        torch.arange(position, position + count),
        torch.full((count,), step),
    )[0]


def test_samples_follow_the_distribution() -> None:
    logits = torch.tensor([1.0, 0.0, 2.0, -1.0]).expand(40_000, 4)
    for temperature in (0.5, 1.0, 2.0):
        share = draw(logits, temperature, 1.0, seed=3, position=0, step=1).bincount(minlength=4) / 40_000
        want = (logits[0] / temperature).softmax(-1)
        torch.testing.assert_close(share, want, atol=0.012, rtol=0)


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-6])
def test_a_temperature_close_to_zero_is_argmax(temperature: float) -> None:
    torch.manual_seed(6)
    logits = torch.randn(200, 50) * 30
    logits[:, 3] = -math.inf
    drawn = draw(logits, temperature, 0.9, seed=3, position=0, step=1)
    assert torch.equal(drawn, logits.argmax(-1))


def test_top_p_draws_only_from_the_nucleus() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(5_000, 4)
    assert set(draw(logits, 1.0, 0.79, seed=3, position=0, step=1).tolist()) == {0, 1}
    assert set(draw(logits, 1.0, 0.81, seed=3, position=0, step=1).tolist()) == {0, 1, 2}
    assert set(draw(logits, 1.0, 1e-6, seed=3, position=0, step=1).tolist()) == {0}


@pytest.mark.parametrize("change", [{"seed": 4}, {"seed": 3 + (1 << 40)}, {"position": 500}, {"step": 2}])
def test_noise_changes_with_seed_position_and_step(change: dict[str, int]) -> None:
    logits = torch.zeros(400, 1000)
    key = {"seed": 3, "position": 0, "step": 1}
    same = draw(logits, 1.0, 1.0, **key)
    assert torch.equal(same, draw(logits, 1.0, 1.0, **key))
    assert (same == draw(logits, 1.0, 1.0, **(key | change))).float().mean() < 0.02


def test_noise_is_finite_for_all_bits() -> None:
    assert gumbel(uniform(torch.tensor([0, 1, 2**31, 2**32 - 1]))).isfinite().all()


def test_a_draw_does_not_depend_on_its_neighbours() -> None:
    torch.manual_seed(1)
    logits = torch.randn(64, 500)
    crowd = draw(logits, 0.8, 0.9, seed=9, position=10, step=4)
    alone = draw(logits[20:21], 0.8, 0.9, seed=9, position=30, step=4)
    assert crowd[20] == alone[0]


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
    got = ops.paged_attention(
        queries,
        keys,
        values,
        table,
        torch.tensor([0, 8, 9], dtype=torch.int32),
        torch.tensor([13, 1], dtype=torch.int32),
    )
    for (start, stop), (k, v) in zip([(0, 8), (8, 9)], dense, strict=True):
        k, v = (x.repeat_interleave(heads // kv_heads, dim=1).transpose(0, 1) for x in (k, v))
        weights = (queries[start:stop].transpose(0, 1) @ k.mT / dim**0.5).softmax(-1)
        torch.testing.assert_close(got[start:stop], (weights @ v).transpose(0, 1).flatten(1))


def test_rope_writes_keys_and_values_to_their_places_only() -> None:
    torch.manual_seed(3)
    heads, kv_heads, dim = 2, 1, 4
    qkv = torch.randn(3, heads + 2 * kv_heads, dim)
    angle = torch.rand(3, dim // 2).repeat(1, 2)
    keys = torch.full((2, 4, kv_heads, dim), math.nan)
    values = torch.full_like(keys, math.nan)
    places = torch.tensor([6, 0, 3])
    queries = ops.rope_write_kv(qkv, angle.cos(), angle.sin(), keys, values, places)
    turn = torch.polar(torch.ones(3, dim // 2), angle[:, : dim // 2])[:, None]
    pairs = torch.view_as_complex(torch.stack(qkv[:, :3].chunk(2, -1), -1).contiguous()) * turn
    want = torch.cat((pairs.real, pairs.imag), -1)
    torch.testing.assert_close(queries, want[:, :2])
    torch.testing.assert_close(keys.flatten(0, 1)[places], want[:, 2:])
    assert torch.equal(values.flatten(0, 1)[places], qkv[:, 3:])
    assert keys.flatten(0, 1)[[1, 2, 4, 5, 7]].isnan().all()


@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 33])
def test_a_row_of_a_product_has_the_same_bits_alone_and_in_a_crowd(tokens: int) -> None:
    torch.manual_seed(4)
    x, weight = torch.randn(500, 256), torch.randn(768, 256)
    assert torch.equal(linear(x[7 : 7 + tokens], weight), linear(x, weight)[7 : 7 + tokens])


def test_norm_and_gate_match_their_formulas() -> None:
    torch.manual_seed(5)
    x, residual, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    normed, total = ops.add_rms_norm(x, residual, weight, 1e-5)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(normed, F.rms_norm(x + residual, (8,), weight, 1e-5))
    torch.testing.assert_close(ops.swiglu(x), F.silu(x[:, :4]) * x[:, 4:])


def test_where_an_answer_may_not_end_the_next_best_token_stands_in_with_its_own_chance() -> None:
    logits = torch.tensor([[0.0, 5.0, 4.0], [0.0, 5.0, 4.0], [0.0, 1.0, 4.0]])
    ends, nothing = torch.tensor([1]), torch.empty(0, dtype=torch.long)
    tokens, confidence = ops.propose(logits.clone(), nothing)
    endless = torch.tensor([True, False, True])
    replaced, commit_probability = ops.replace_ends(logits, tokens, confidence, endless, ends)
    assert replaced.tolist() == [2, 1, 2]
    torch.testing.assert_close(commit_probability, logits.double().softmax(-1)[torch.arange(3), replaced])
    assert tokens.tolist() == [1, 1, 2], "what is proposed is told as it is"


def test_a_row_attends_to_the_bit_as_a_longer_one_that_starts_a_page_or_more_before_it() -> None:
    """Choices of one prompt rely on it: one computes the prompt, the others start behind its last whole page."""
    generator = torch.Generator().manual_seed(5)
    for prompt in (17, 40, 64, 130, 202, 313, 770):
        for behind in (1, 2, 3, 16, 24, 33, 34, 64, 100):
            end, start = prompt + behind, prompt // 16 * 16
            queries = torch.randn(end, 2, 32, generator=generator)
            keys, values = (torch.randn(-(-end // 16), 16, 2, 32, generator=generator) for _ in range(2))
            given = keys, values, torch.arange(len(keys), dtype=torch.int32)[None]
            seen = torch.tensor([end], dtype=torch.int32)
            whole, part = (
                ops.paged_attention(queries[first:], *given, torch.tensor([0, end - first]), seen)
                for first in (0, start)
            )
            assert torch.equal(whole[start:], part), (prompt, behind)


def test_measures_are_what_the_contract_says() -> None:
    probabilities = torch.tensor([[0.5, 0.3, 0.2], [0.9, 0.06, 0.04], [0.4, 0.4, 0.2]])
    endless = torch.tensor([False, True, False])
    draws = draws_of(3, positions=[4, 5, 6])
    found = ops.predict(probabilities.log(), NO_IDS, torch.tensor([0]), endless, draws)

    def measured(kind: int, noise: float = 0.0) -> Tensor:
        return measures.measure(found, torch.full((3,), kind).int(), torch.full((3,), noise), draws)

    entropies = (probabilities * probabilities.log()).sum(-1).double()
    wants = {measures.PROBABILITY: [0.5, 0.06, 0.4], measures.MARGIN: [0.2, 0.06 - 64, 0.0]}
    wants[measures.ENTROPY] = [entropies[0].item(), 0.06 - 64, entropies[2].item()]
    for kind, want in wants.items():
        torch.testing.assert_close(measured(kind), torch.tensor(want, dtype=torch.float64), atol=1e-6, rtol=0)
    noise = position_noise(draws).double()
    assert torch.equal(measured(measures.RANDOM), noise)
    assert ((noise > 0) & (noise < 1)).all()
    want = measured(measures.MARGIN) / 0.25 + gumbel(noise)
    torch.testing.assert_close(measured(measures.MARGIN, 0.25), want)


def test_a_single_has_the_bits_of_torch_s_softmax_where_it_is_asked_for() -> None:
    """A probability from the others' weight, rounded, differs from it in some of them."""
    torch.manual_seed(0)
    logits = torch.randn(200, 1408) * 3
    logits[:, 7] += 14
    nobody, draws = torch.zeros(200, dtype=torch.bool), draws_of(200)
    found = ops.predict(logits, NO_IDS, NO_IDS, nobody, draws)
    kinds = torch.tensor([measures.SINGLE, measures.PROBABILITY] * 100).int()
    got = measures.measure(measures.with_singles(found, logits, kinds), kinds, torch.zeros(200), draws)
    assert torch.equal(got[::2].float(), logits.softmax(-1).amax(-1)[::2])
    assert not torch.equal(got[::2].float(), found.commit_probability[::2].float())
    assert torch.equal(got[1::2], found.commit_probability[1::2])


def test_a_margin_is_that_of_the_distribution_whatever_is_drawn() -> None:
    logits = torch.tensor([0.5, 0.3, 0.2]).log().expand(40, 3).contiguous()
    draws = draws_of(40, temperature=1.0, positions=list(range(40)))
    found = ops.predict(logits, NO_IDS, NO_IDS, torch.zeros(40, dtype=torch.bool), draws)
    assert len(found.proposals.unique()) == 3
    torch.testing.assert_close(found.margin, torch.full((40,), 0.2, dtype=torch.float64), atol=1e-6, rtol=0)


def test_noise_of_positions_is_uniform_and_no_tokens_noise() -> None:
    """Of 20,000 positions the mean and the share below a tenth; and it is correlated with no token's noise."""
    count = 20_000
    draws = draws_of(count, seeds=9, positions=list(range(count)))
    noise = position_noise(draws)
    assert abs(noise.mean().item() - 0.5) < 4 / math.sqrt(12 * count)
    assert abs((noise < 0.1).double().mean().item() - 0.1) < 4 * math.sqrt(0.09 / count)
    tokens = token_noise(draws.seeds, draws.positions, draws.steps, 3)
    together = torch.corrcoef(torch.cat((noise[:, None], tokens), dim=1).T)
    assert (together[0, 1:].abs() < 4 / math.sqrt(count)).all()


def test_what_is_not_open_never_commits_however_low_confidence_is() -> None:
    got = ops.transfer(
        torch.tensor([-70.0, 0.9, -3.0, 0.9], dtype=torch.float64),
        torch.tensor([True, False, True, False]),
        torch.tensor([0, 4], dtype=torch.int32),
        torch.tensor([0], dtype=torch.int32),
        torch.tensor([-4.0]),
        torch.tensor([0.0]),
        torch.tensor([False]),
    )
    assert got.tolist() == [False, False, True, False]


@pytest.mark.parametrize("block", [1, 4, 5, 16, 64])
def test_within_blocks_a_query_sees_the_keys_before_its_blocks_end(block: int) -> None:
    torch.manual_seed(6)
    start, end, dim = 20, 43, 8
    queries, (k, v) = torch.randn(end - start, 2, dim), torch.randn(2, 48, 1, dim)
    given = k.view(12, 4, 1, dim), v.view(12, 4, 1, dim), torch.arange(12, dtype=torch.int32)[None]
    positions, rows = torch.arange(start, end), torch.tensor([0, end - start])
    got = ops.paged_attention(queries, *given, rows, torch.tensor([end]), block, positions)
    seen = torch.arange(end) < ((positions // block + 1) * block)[:, None]
    scores = torch.einsum("qhd,kd->hqk", queries, k[:end, 0]) / dim**0.5
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
    torch.testing.assert_close(got, torch.einsum("hqk,kd->qhd", weights, v[:end, 0]).flatten(1))
    with pytest.raises(ValueError, match="block needs positions"):
        ops.paged_attention(queries, *given, rows, torch.tensor([end]), block)


@pytest.mark.parametrize("block", [4, 16, 32])
def test_a_block_attends_to_the_bit_alike_whatever_lies_before_it_in_its_row_or_behind_it(block: int) -> None:
    """Keys and values of finished blocks are kept, and shared with other requests, because of it."""
    generator = torch.Generator().manual_seed(7)
    length = 96 if block < 32 else 192
    queries = torch.randn(length, 2, 32, generator=generator)
    keys, values = (torch.randn(length // 16, 16, 2, 32, generator=generator) for _ in range(2))
    given = keys, values, torch.arange(len(keys), dtype=torch.int32)[None]
    positions = torch.arange(length)

    def attention(start: int, end: int) -> Tensor:
        bounds, seen = torch.tensor([0, end - start]), torch.tensor([end], dtype=torch.int32)
        return ops.paged_attention(queries[start:end], *given, bounds, seen, block, positions[start:end])

    whole = attention(0, length)
    for start in range(0, length, block):
        for end in range(start + block, length + 1, block):
            assert torch.equal(whole[start:end], attention(start, end))


def test_a_query_does_not_see_the_key_that_its_row_hides() -> None:
    torch.manual_seed(6)
    start, end, dim, distance = 20, 43, 8, 17
    queries, (k, v) = torch.randn(end - start, 2, dim), torch.randn(2, 48, 1, dim)
    given = k.view(12, 4, 1, dim), v.view(12, 4, 1, dim), torch.arange(12, dtype=torch.int32)[None]
    positions, rows, hides = torch.arange(start, end), torch.tensor([0, end - start]), torch.tensor([distance])
    got = ops.paged_attention(queries, *given, rows, torch.tensor([end]), 0, positions, hides)
    seen = torch.arange(end) != (positions - distance)[:, None]
    scores = torch.einsum("qhd,kd->hqk", queries, k[:end, 0]) / dim**0.5
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
    torch.testing.assert_close(got, torch.einsum("hqk,kd->qhd", weights, v[:end, 0]).flatten(1))
