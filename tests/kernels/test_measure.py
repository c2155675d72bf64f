"""Measures of confidence and their noise: the reference against the contract, the kernel against the reference."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from asynclane.kernels.common.noise import gumbel, position_noise, token_noise, uniform
from asynclane.kernels.common.types import Prediction
from asynclane.kernels.measure import reference
from asynclane.kernels.predict.reference import predict
from asynclane.scheduler.contract import Measure

from ..support.kernel_cases import DEVICE, draws_of, kernels_of, some_logits

device = kernels_of("measure")
NO_IDS = torch.tensor([], dtype=torch.int64)


def test_measures_are_what_the_contract_says() -> None:
    probabilities = torch.tensor([[0.5, 0.3, 0.2], [0.9, 0.06, 0.04], [0.4, 0.4, 0.2]])
    endless = torch.tensor([False, True, False])
    draws = draws_of(3, positions=[4, 5, 6])
    found = predict(probabilities.log(), NO_IDS, torch.tensor([0]), endless, draws)

    def measured(kind: int, noise: float = 0.0) -> Tensor:
        return reference.measure(
            probabilities.log(), found, torch.full((3,), kind).int(), torch.full((3,), noise), draws
        )

    entropies = (probabilities * probabilities.log()).sum(-1).double()
    wants = {reference.PROBABILITY: [0.5, 0.06, 0.4], reference.MARGIN: [0.2, 0.06 - 64, 0.0]}
    wants[reference.ENTROPY] = [entropies[0].item(), 0.06 - 64, entropies[2].item()]
    for kind, want in wants.items():
        torch.testing.assert_close(measured(kind), torch.tensor(want, dtype=torch.float64), atol=1e-6, rtol=0)
    noise = position_noise(draws).double()
    assert torch.equal(measured(reference.RANDOM), noise)
    assert ((noise > 0) & (noise < 1)).all()
    want = measured(reference.MARGIN) / 0.25 + gumbel(noise)
    torch.testing.assert_close(measured(reference.MARGIN, 0.25), want)


def test_a_single_has_the_bits_of_torch_s_softmax_where_it_is_asked_for() -> None:
    """A probability from the others' weight, rounded, differs from it in some of them."""
    torch.manual_seed(0)
    logits = torch.randn(200, 1408) * 3
    logits[:, 7] += 14
    nobody, draws = torch.zeros(200, dtype=torch.bool), draws_of(200)
    found = predict(logits, NO_IDS, NO_IDS, nobody, draws)
    kinds = torch.tensor([reference.SINGLE, reference.PROBABILITY] * 100).int()
    got = reference.measure(logits, found, kinds, torch.zeros(200), draws)
    assert torch.equal(got[::2].float(), logits.softmax(-1).amax(-1)[::2])
    assert not torch.equal(got[::2].float(), found.commit_probability[::2].float())
    assert torch.equal(got[1::2], found.commit_probability[1::2])


def test_the_kinds_have_the_numbers_of_the_contract() -> None:
    assert {kind.name: kind.value for kind in Measure} == {kind.name: getattr(reference, kind.name) for kind in Measure}


def test_noise_is_finite_for_all_bits() -> None:
    assert gumbel(uniform(torch.tensor([0, 1, 2**31, 2**32 - 1]))).isfinite().all()


def test_noise_of_positions_is_uniform_and_no_tokens_noise() -> None:
    """20,000 positions have the mean and the share below a tenth of a uniform draw, and no token's noise."""
    count = 20_000
    draws = draws_of(count, seeds=9, positions=list(range(count)))
    noise = position_noise(draws)
    assert abs(noise.mean().item() - 0.5) < 4 / math.sqrt(12 * count)
    assert abs((noise < 0.1).double().mean().item() - 0.1) < 4 * math.sqrt(0.09 / count)
    tokens = token_noise(draws, 3)
    together = torch.corrcoef(torch.cat((noise[:, None], tokens), dim=1).T)
    assert (together[0, 1:].abs() < 4 / math.sqrt(count)).all()


@pytest.mark.parametrize("count", [1, 300])
def test_measures_equal_the_reference(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    draws = draws_of(
        count, DEVICE, seeds=[(7919 * n << 40) - n for n in range(count)], positions=list(range(count)), steps=5
    )
    logits, ends = some_logits(DEVICE, count, 90, torch.float32), torch.arange(40, device=DEVICE)
    endless = torch.rand(count, generator=generator).to(DEVICE) < 0.5
    found = predict(logits, NO_IDS, ends, endless, draws)
    kinds = torch.randint(0, 5, (count,), generator=generator, dtype=torch.int32).to(DEVICE)
    noise = torch.tensor([0.0, 0.0, 0.3, 2.0], device=DEVICE)[torch.randint(0, 4, (count,), generator=generator)]
    want = reference.measure(logits, found, kinds, noise, draws)
    got = device.measure(logits, found, kinds, noise, draws)
    single, plain = kinds == reference.SINGLE, noise == 0  # a single has the last bit of torch's softmax on a CPU alone
    assert torch.equal(got[plain & ~single], want[plain & ~single])
    assert torch.equal(got[plain & single], found.commit_probability[plain & single].float().double())
    torch.testing.assert_close(got[~single], want[~single], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


def test_measures_of_nothing() -> None:
    none = torch.zeros(0, device=DEVICE)
    nothing = Prediction(none.long(), none.double(), none.long(), none.double(), none.double(), none)
    assert not len(device.measure(none, nothing, none.int(), none, draws_of(0, DEVICE)))
