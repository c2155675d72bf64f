"""The order of torch on a CPU, written out for rules whose published tokens hang on it, is torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asynclane.scheduler.decoding.commit.shared import torch_order

KINDS = (2, 4, 1000)  # different values, so that most, some and few are equal


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 17])
def test_equals_are_picked_as_torch_picks_them(count: int, kinds: int) -> None:
    generator = np.random.default_rng(count)
    for size in generator.integers(count, 1200, 60).tolist():
        values = generator.integers(0, kinds, size) / kinds
        values[generator.random(size) < 0.4] = -np.inf  # what may not be picked
        want = torch.tensor(values, dtype=torch.float32).topk(count).indices
        assert sorted(torch_order.topk(values, count)) == sorted(want.tolist()), size


def test_the_least_are_picked_likewise() -> None:
    values = np.random.default_rng(0).integers(0, 5, 166) / 5
    for count in (1, 2, 3, 6):
        want = torch.tensor(values, dtype=torch.float32).topk(count, largest=False).indices
        assert sorted(torch_order.topk(-values, count)) == sorted(want.tolist())


def test_a_mean_has_the_bits_of_torch_s() -> None:
    """Sums in another order differ in some of them."""
    generator, differ = np.random.default_rng(0), 0
    for size in range(1, 513):
        values = (1 - generator.random(size) ** 4).astype(np.float32)
        want = torch.tensor(values).mean().item()
        assert torch_order.mean(values) == want, size
        differ += float(np.mean(values)) != want
    assert differ > 50
