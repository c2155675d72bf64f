"""Predictions and draws: the reference against their definitions, the kernel against the reference."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from asynclane.kernels.common.types import Prediction
from asynclane.kernels.predict import reference

from ..support.kernel_cases import DEVICE, draws_of, kernels_of, some_logits
from ..support.scale import ALL, LONG

device = kernels_of("predict")
NO_IDS = torch.tensor([], dtype=torch.int64, device=DEVICE)


def test_a_proposal_is_never_a_banned_token_and_its_probability_is_the_softmax() -> None:
    torch.manual_seed(0)
    logits = torch.randn(50, 33) * 5
    logits[:, 7] += 100
    tokens, probability = reference.propose(logits.clone(), torch.tensor([7]))
    allowed = logits.double().clone()
    allowed[:, 7] = -math.inf
    want = allowed.softmax(-1).max(-1)
    assert torch.equal(tokens, want.indices)
    torch.testing.assert_close(probability, want.values, atol=1e-6, rtol=0)


def test_probabilities_close_to_one_stay_apart() -> None:
    """A float32 softmax would round both to 1 and lose their order."""
    logits = torch.tensor([[30.0, 0.0], [31.0, 0.0]])
    _, probability = reference.propose(logits, torch.tensor([], dtype=torch.int64))
    assert probability[0] < probability[1] < 1


def test_where_an_answer_may_not_end_the_next_best_token_stands_in_with_its_own_chance() -> None:
    logits = torch.tensor([[0.0, 5.0, 4.0], [0.0, 5.0, 4.0], [0.0, 1.0, 4.0]])
    ends, nothing = torch.tensor([1]), torch.empty(0, dtype=torch.long)
    tokens, confidence = reference.propose(logits.clone(), nothing)
    endless = torch.tensor([True, False, True])
    replaced, commit_probability = reference.replace_ends(logits, tokens, confidence, endless, ends)
    assert replaced.tolist() == [2, 1, 2]
    torch.testing.assert_close(commit_probability, logits.double().softmax(-1)[torch.arange(3), replaced])
    assert tokens.tolist() == [1, 1, 2], "the proposal is reported as it is"


def draw(logits: Tensor, temperature: float, top_p: float, seed: int, position: int, step: int) -> Tensor:
    count = len(logits)
    positions = list(range(position, position + count))
    draws = draws_of(count, temperature=temperature, top_p=top_p, seeds=seed, positions=positions, steps=step)
    return reference.sample(logits, draws)[0]


def test_samples_follow_the_distribution() -> None:
    logits = torch.tensor([1.0, 0.0, 2.0, -1.0]).expand(40_000, 4)
    for temperature in (0.5, 1.0, 2.0):
        share = draw(logits, temperature, 1.0, seed=3, position=0, step=1).bincount(minlength=4) / 40_000
        want = (logits[0] / temperature).softmax(-1)
        torch.testing.assert_close(share, want, atol=0.012, rtol=0)


@pytest.mark.parametrize("temperature", [1e-45, 1e-6])
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


def test_a_draw_does_not_depend_on_its_neighbours() -> None:
    torch.manual_seed(1)
    logits = torch.randn(64, 500)
    whole = draw(logits, 0.8, 0.9, seed=9, position=10, step=4)
    alone = draw(logits[20:21], 0.8, 0.9, seed=9, position=30, step=4)
    assert whole[20] == alone[0]


def test_a_margin_is_that_of_the_distribution_whatever_is_drawn() -> None:
    logits = torch.tensor([0.5, 0.3, 0.2], device=DEVICE).log().expand(40, 3).contiguous()
    draws = draws_of(40, DEVICE, temperature=1.0, positions=list(range(40)))
    endless = torch.zeros(40, dtype=torch.bool, device=DEVICE)
    found = reference.predict(logits, NO_IDS, NO_IDS, endless, draws)
    assert len(found.proposals.unique()) == 3
    torch.testing.assert_close(
        found.margin, torch.full((40,), 0.2, dtype=torch.float64, device=DEVICE), atol=1e-6, rtol=0
    )


def assert_predictions(got: Prediction, want: Prediction) -> None:
    for name, wanted, tolerance in zip(Prediction._fields, want, (0, 1e-5, 0, 1e-5, 1e-5, 2e-5), strict=True):
        got_, atol = getattr(got, name).double(), 1e-12 if tolerance else 0
        message = f"{name}: {{}}".format
        torch.testing.assert_close(got_, wanted.double(), atol=atol, rtol=tolerance, msg=message)


def assert_predict(logits: Tensor, banned: list[int], ends: list[int], **launch: Any) -> Prediction:
    draws = launch.pop("draws", None)
    endless = torch.arange(len(logits), device=DEVICE) % 2 == 0
    given = torch.tensor(banned, dtype=torch.int64, device=DEVICE), torch.tensor(ends, dtype=torch.int64, device=DEVICE)
    want = reference.predict(logits.clone(), *given, endless, draws)
    got = device.predict(logits, *given, endless, draws, **launch)
    assert_predictions(got, want)
    return got


SIZES, DTYPES = [(300, 1), (4096, 3), (5000, 4)], (torch.bfloat16, torch.float16, torch.float32)


@pytest.mark.parametrize(("sizes", "dtype"), [*(itertools.product if ALL else zip)(SIZES, DTYPES)])
def test_predictions(sizes: tuple[int, int], dtype: torch.dtype) -> None:
    vocabulary, splits = sizes
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
    assert not len(device.predict(some_logits(DEVICE, 0, 50, torch.float32), NO_IDS, NO_IDS, none).tokens)


@pytest.mark.filterwarnings("ignore:All-NaN")  # of the interpreter
def test_a_row_of_nan_yields_ids_of_the_vocabulary_and_spares_its_neighbours() -> None:
    logits = some_logits(DEVICE, 4, 1100, torch.float32)
    want = logits.argmax(-1)
    logits[1:3] = math.nan
    draws = draws_of(4, DEVICE, temperature=[0.0, 0.0, 1.0, 0.0])
    endless = torch.ones(4, dtype=torch.bool, device=DEVICE)
    got = device.predict(logits, NO_IDS, torch.zeros(1, dtype=torch.int64, device=DEVICE), endless, draws)
    assert ((got.tokens >= 0) & (got.tokens < 1100)).all()
    assert torch.equal(got.proposals[[0, 3]], want[[0, 3]])
    assert got.confidence.isnan().tolist() == [False, True, True, False]


@pytest.mark.parametrize(("dtype", "splits"), [(torch.float32, 2), pytest.param(torch.bfloat16, 1, marks=LONG)])
def test_draws_equal_the_reference(dtype: torch.dtype, splits: int) -> None:
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
    logits = some_logits(DEVICE, count, 2200, dtype)
    got = assert_predict(logits, [4], [7], draws=draws, splits=splits)
    greedy = logits.float().index_fill(-1, torch.tensor([4], device=DEVICE), -math.inf).argmax(-1)
    assert (got.proposals[[0, 4, 7]] == greedy[[0, 4, 7]]).all()


def test_draws_without_narrowing() -> None:
    draws = draws_of(3, DEVICE, temperature=[1.0, 0.0, 0.6], min_p=[0.0, 0.0, 0.2])
    assert_predict(some_logits(DEVICE, 3, 1100, torch.float32), [], [], draws=draws, narrowed=False, splits=1)


@LONG
def test_top_k_and_top_p_draw_only_what_they_keep() -> None:
    count = 12
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1], device=DEVICE).log().bfloat16().expand(count, 4).contiguous()
    for kept, params in [({0, 1}, {"top_p": 0.65}), ({0, 1, 2}, {"top_k": 3}), ({0}, {"min_p": 0.9})]:
        draws = draws_of(count, DEVICE, temperature=1.0, positions=list(range(count)), **params)
        nobody = torch.zeros(count, dtype=torch.bool, device=DEVICE)
        assert set(device.predict(logits, NO_IDS, NO_IDS, nobody, draws).proposals.tolist()) == kept
