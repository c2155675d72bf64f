"""Biases, masks of the vocabulary, caps and temperatures: the kernels against the reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from asynclane.kernels.logits import reference

from ..support.kernel_cases import DEVICE, NARROW, assert_near, kernels_of, some_logits
from ..support.scale import crossed, part

device = kernels_of("logits")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_biases_equal_the_reference_and_touch_nothing_else(dtype: torch.dtype) -> None:
    logits = some_logits(DEVICE, 80, 1100, dtype)
    begins, ends = (
        torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in ([0, 40, 41, 50, 0], [40, 41, 41, 80, 0])
    )
    starts = torch.tensor([0, 300, 301, 305, 320, 320], dtype=torch.int32, device=DEVICE)
    ids = torch.cat([torch.randperm(1100)[:300], torch.arange(20)]).int().to(DEVICE)
    deltas = torch.linspace(-3, 3, 320, device=DEVICE)
    deltas[::7] = -math.inf
    factors = torch.ones(320, device=DEVICE)
    want, got = logits.clone(), logits.clone()
    reference.adjust(want, begins, ends, starts, ids, deltas, factors)
    device.adjust(got, begins, ends, starts, ids, deltas, factors)
    assert torch.equal(got, want)
    assert (want != logits).sum() == 40 * 300 + 1 + 30 * 15
    assert (want[0] == -math.inf).sum() == 43


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_factors_bring_logits_nearer_to_minus_infinity_before_anything_is_added(dtype: torch.dtype) -> None:
    logits = some_logits(DEVICE, 9, 1100, dtype)
    begins, ends, starts = (torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in ([2], [7], [0, 300]))
    ids = torch.randperm(1100, device=DEVICE)[:300].int()
    deltas, factors = torch.linspace(-3, 3, 300, device=DEVICE), torch.linspace(0.5, 3, 300, device=DEVICE)
    want, got, plain = logits.clone(), logits.clone(), logits.clone()
    columns = ids.long()
    one_by_one = [(logits[row, columns].double(), row) for row in range(2, 7)]
    reference.adjust(want, begins, ends, starts, ids, deltas, factors)
    device.adjust(got, begins, ends, starts, ids, deltas, factors)
    assert torch.equal(got, want)
    for before, row in one_by_one:
        scaled = before * torch.where(before > 0, 1 / factors.double(), factors.double())
        assert torch.allclose(want[row, columns].double(), scaled + deltas, rtol=1e-3, atol=1e-2)
    reference.adjust(plain, begins, ends, starts, ids, deltas, torch.ones_like(factors))
    assert torch.equal(plain[2:7, columns], (logits[2:7, columns].float() + deltas).to(dtype))


@pytest.mark.parametrize(
    ("sizes", "dtype"), crossed([(1100, 35), (33, 2), (2049, 70)], [torch.float32, torch.float16]), ids=str
)
def test_masks_equal_the_reference_and_touch_nothing_else(sizes: tuple[int, int], dtype: torch.dtype) -> None:
    vocabulary, words = sizes
    logits = some_logits(DEVICE, 9, vocabulary, dtype)
    places = torch.tensor([3, -1, 8, 0, -1], dtype=torch.int32, device=DEVICE)
    masks = torch.randint(-(2**31), 2**31, (5, words), device=DEVICE).int()
    masks[3] = 0
    want, got = logits.clone(), logits.clone()
    reference.restrict(want, places, masks)
    device.restrict(got, places, masks)
    assert torch.equal(got, want)
    for row, place in enumerate(places.tolist()):
        if place >= 0:
            bits = np.unpackbits(masks[row].cpu().numpy().view(np.uint8), bitorder="little")[:vocabulary]
            assert ((want[place] > -math.inf).cpu().numpy() == bits.astype(bool)).all()
    others = [row for row in range(9) if row not in (3, 8, 0)]
    assert torch.equal(want[others], logits[others])


@pytest.mark.parametrize("dtype", [torch.float32, *NARROW])
def test_capped_logits_are_those_of_torch_and_stay_below_the_cap(dtype: torch.dtype) -> None:
    logits = some_logits(DEVICE, 3, 1100, dtype, spread=40.0)
    logits[0, :2] = torch.tensor([1e-4, -0.1])
    got = device.soft_cap(logits[:, :1093], 30.0)
    torch.testing.assert_close(got, reference.soft_cap(logits[:, :1093], 30.0), rtol=2e-6, atol=0)
    torch.testing.assert_close(got, 30 * torch.tanh(logits[:, :1093].float() / 30))
    assert (got.abs() <= 30).all()


@pytest.mark.parametrize("dtype", part([torch.float32, *NARROW], 3))
def test_tempered_logits_are_quotients_and_their_shares_a_softmax(dtype: torch.dtype) -> None:
    """Temperature 0 leaves a row as it is; banned tokens have no share; of equal ones the first is the likeliest."""
    vocabulary = 16417  # some programs have two blocks, others none
    logits = some_logits(DEVICE, 4, vocabulary, torch.float32)
    logits[1] = 2.0
    logits[2, : vocabulary // 2] = -math.inf
    temperatures = torch.tensor([0.7, 0.4, 1.5, 0.0], device=DEVICE)
    want, got = logits.clone(), logits.clone()
    (want_shares, want_tokens), (shares, tokens) = (
        ops.temper(each, temperatures, dtype) for ops, each in ((reference, want), (device, got))
    )
    assert torch.equal(got, want)
    assert torch.equal(got[3], logits[3])
    assert torch.equal(tokens, want_tokens)
    assert tokens[1] == 0
    assert shares.dtype == dtype
    torch.testing.assert_close(shares, want_shares, rtol=2 * torch.finfo(dtype).eps + 1e-5, atol=1e-7)
    assert_near(shares.float().sum(-1).to(dtype), torch.ones(4, dtype=dtype, device=DEVICE))
    assert (shares[2, : vocabulary // 2] == 0).all()


@pytest.mark.filterwarnings("ignore:invalid value")  # of the interpreter
def test_a_row_that_is_nan_has_a_likeliest_token_within_the_vocabulary() -> None:
    logits = torch.full((1, 40), math.nan, device=DEVICE)
    shares, tokens = device.temper(logits, torch.ones(1, device=DEVICE), torch.float32)
    assert shares.isnan().all()
    assert 0 <= tokens.item() < 40
