"""Commits: the reference against the contract's rule, the kernels against the reference."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
import torch

from asynclane.kernels.commit import reference
from asynclane.kernels.common.types import SpanRules

from ..support.kernel_cases import DEVICE, kernels_of, span_case

device = kernels_of("commit")


def transfer_plainly(
    confidence: list[float],
    open_: list[bool],
    sure: int,
    threshold: float,
    factor: float,
    last_free: bool,
    budget: float,
    inclusive: bool,
) -> list[bool]:
    """`DeviceCommitRule`, word for word, on one span."""
    ranked = sorted((i for i, o in enumerate(open_) if o), key=lambda i: (-confidence[i], i))
    commit = [False] * len(confidence)
    spent = 0.0
    for n, position in enumerate(ranked, start=1):
        free = n <= sure or (last_free and n == len(ranked))
        cost = -confidence[position]
        over = spent + (cost if inclusive else 0.0) > budget
        if not free and (over or confidence[position] < threshold - factor / (n + 1)):
            break
        spent += cost
        commit[position] = True
    return commit


def test_transfer_follows_its_rule_on_random_spans() -> None:
    rng = random.Random(5)
    for _ in range(100):
        spans = []
        for _ in range(rng.randint(1, 5)):
            size = rng.randint(1, 9)
            lower = rng.choice([0, 1])  # entropies are negative confidence
            confidence = [rng.choice([rng.random(), 0.5, 1.0]) - lower for _ in range(size)]
            open_ = [rng.random() < 0.7 for _ in range(size)]
            rule = rng.randint(0, 3), rng.choice([0.5, 1.0, math.inf]), rng.choice([0.0, 1.0]), rng.random() < 0.5
            if lower:
                rule = rng.randint(0, 1), rng.choice([-32.0, -0.5]), 0.0, False
            rule += rng.choice([0.0, 0.3, 1.0, math.inf]) if lower else math.inf, rng.random() < 0.5
            spans.append((confidence, open_, *rule))
        want = [commit for span in spans for commit in transfer_plainly(*span)]
        got = reference.transfer(
            torch.tensor([c for span in spans for c in span[0]], dtype=torch.float64),
            torch.tensor([o for span in spans for o in span[1]]),
            SpanRules(
                torch.tensor([0, *torch.tensor([len(span[0]) for span in spans]).cumsum(0)], dtype=torch.int32),
                *(torch.tensor(column) for column in list(zip(*spans, strict=True))[2:]),
            ),
        )
        assert got.tolist() == want, spans


def test_what_is_not_open_never_commits_however_low_confidence_is() -> None:
    got = reference.transfer(
        torch.tensor([-70.0, 0.9, -3.0, 0.9], dtype=torch.float64),
        torch.tensor([True, False, True, False]),
        SpanRules(*(torch.tensor(numbers) for numbers in ([0, 4], [0], [-4.0], [0.0], [False]))),
    )
    assert got.tolist() == [False, False, True, False]


@pytest.mark.parametrize("budgets", [False, True])
@pytest.mark.parametrize("sizes", [[1], [64], [3, 0, 1, 130, 65, 9, 0]])
def test_transfer_and_commit(sizes: list[int], budgets: bool) -> None:
    confidence, open_, rules = span_case(sizes, DEVICE, budgets=budgets)
    want = reference.transfer(confidence, open_, rules)
    assert torch.equal(device.transfer(confidence, open_, rules), want)

    total, spare, mask_id = sum(sizes), 2, 11
    slots = torch.arange(total + spare, device=DEVICE) % 3
    positions = torch.arange(total + spare, device=DEVICE)
    canvases = torch.zeros((4, total + spare), dtype=torch.int64, device=DEVICE)
    canvases[slots[:total], positions[:total]] = torch.where(open_, mask_id, 5)
    tokens = torch.arange(100, 100 + total + spare, device=DEVICE)
    padded = torch.cat((confidence, torch.ones(spare, dtype=torch.float64, device=DEVICE)))
    expected = canvases.clone()
    want = reference.commit(expected, slots[:total], positions[:total], tokens[:total], confidence, mask_id, rules)
    got = device.commit(canvases, slots, positions, tokens, padded, mask_id, rules)
    assert torch.equal(got[:total], want)
    assert torch.equal(canvases, expected)


def test_all_commit_and_none() -> None:
    confidence, open_, rules = span_case([70], DEVICE)
    rules = rules._replace(**{name: torch.zeros_like(getattr(rules, name)) for name in ("sure", "factor", "last_free")})
    for threshold, want in [(0.0, True), (2.0, False)]:
        chosen = rules._replace(threshold=torch.tensor([threshold], device=DEVICE))
        assert (device.transfer(confidence, torch.ones_like(open_), chosen) == want).all()


def commits(entropies: list[float], budget: float, inclusive: bool = False) -> list[bool]:
    """The positions of one span that commit within a budget, of which one always does."""
    numbers = [0, len(entropies)], [1], [-32.0], [0.0], [False], [budget], [inclusive]
    costs = torch.tensor(entropies, dtype=torch.float64, device=DEVICE)
    types = torch.int32, torch.int32, torch.float32, torch.float32, torch.bool, torch.float32, torch.bool
    rules = SpanRules(*(torch.tensor(n, dtype=t, device=DEVICE) for n, t in zip(numbers, types, strict=True)))
    found: list[bool] = device.transfer(
        -costs, torch.ones(len(entropies), dtype=torch.bool, device=DEVICE), rules
    ).tolist()
    return found


def test_a_budget_bounds_the_sum_of_entropies() -> None:
    entropies = [0.3, 0.0, 2.0, 0.05, 0.0]
    assert commits(entropies, 0.0) == [False, True, False, True, True]  # the best, and one after others of no entropy
    assert commits(entropies, math.inf) == [True] * 5
    assert commits(entropies, 0.34) == [True, True, False, True, True]
    assert commits(entropies, 0.36) == [True] * 5  # the largest does not count
    assert commits(entropies, 0.36, inclusive=True) == [True, True, False, True, True]
    assert commits([4.0], 0.0, inclusive=True) == [True]
    wider = [commits(entropies, bound) for bound in (0.0, 0.01, 0.1, 0.34, 1.0, 3.0)]
    assert all(more or not less for few, many in pairwise(wider) for less, more in zip(few, many, strict=True))
    mirrored = commits(entropies[::-1], 0.34)
    assert mirrored[::-1] == commits(entropies, 0.34)


@pytest.mark.parametrize("count", [1, 300])
def test_tokens_of_the_host_are_written_and_nothing_else(count: int) -> None:
    canvases = torch.arange(4 * 200, device=DEVICE).view(4, 200)
    places = torch.randperm(4 * 200, device=DEVICE)[:count]
    slots, positions = places // 200, places % 200
    tokens = torch.where(torch.arange(count, device=DEVICE) % 3 == 2, -1, places + 5000).int()
    positions = torch.where(tokens < 0, -1, positions)  # as padding is
    want, got = canvases.clone(), canvases.clone()
    reference.write_tokens(want, slots, positions, tokens)
    device.write_tokens(got, slots, positions, tokens)
    assert torch.equal(got, want)
    assert (want != canvases).sum() == (tokens >= 0).sum()
