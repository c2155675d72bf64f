"""Decoder `dream` against Dream's published sampler, written out plainly, and the statistics of what it draws."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from asynclane.models.exec.runner import Runner
from asynclane.scheduler import AttentionPattern
from asynclane.scheduler.contract import GREEDY, DeviceCommitRule, Measure, Placement, Row, Sampling, Span, StepPlan

from ..support.driver import Spec, full_logits, run
from ..support.fakes import MASK, vocabulary
from ..support.golden import WHOLE
from ..support.scale import ALL, crossed
from ..support.small_network import small_runner

SEEDS = 3200 if ALL else 1600
LENGTH = 24
PROMPT = [5, 9, 3, 6]  # a prompt, so that no two positions are alike


def published(runner: Runner, prompt: list[int], alg: str, steps: int, shift: int) -> tuple[list[int], list[int]]:
    """DreamLM/Dream generation_utils.py at temperature 0 and batch 1: the answer, and how many each step takes."""
    x = torch.tensor([*prompt, *[MASK] * LENGTH])
    timesteps, taken = torch.linspace(1, 0.001, steps + 1), []
    for i in range(steps):
        masks = (x == MASK).nonzero()[:, 0]
        probabilities = forward(runner, x, shift)[masks].softmax(-1)
        best = probabilities.max(-1)
        match alg:
            case "maskgit_plus":
                confidence = best.values
            case "topk_margin":
                two = probabilities.topk(2, dim=-1).values
                confidence = two[:, 0] - two[:, 1]
            case _:
                confidence = (probabilities * (probabilities + 1e-10).log()).sum(-1)
        count = torch.tensor(len(masks)) / 1
        number = int(count * (1 - timesteps[i + 1] / timesteps[i])) if i < steps - 1 else int(count)
        chosen = confidence.topk(number).indices
        x[masks[chosen]] = best.indices[chosen]
        taken.append(number)
    return x[len(prompt) :].tolist(), taken


def forward(runner: Runner, x: Tensor, shift: int) -> Tensor:
    """Logits [length, V] float64 of every position, by the network without shift, moved as Dream moves its own."""
    logits = full_logits(runner, x.int().numpy(), MASK)
    return torch.cat((logits[:1], logits[:-1])) if shift else logits


def prompts(count: int) -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(2, 19) for _ in range(rng.randint(1, 40))] for _ in range(count)]


@pytest.mark.parametrize(
    ("alg", "steps", "shift"), crossed(["maskgit_plus", "topk_margin", "entropy"], [LENGTH, 7], [0, 1])
)
def test_answers_are_those_of_the_published_sampler(alg: str, steps: int, shift: int) -> None:
    specs = [Spec(prompt, LENGTH, "dream", {"alg": alg, "steps": steps, **WHOLE}) for prompt in prompts(2)]
    plain = small_runner()
    answers = run(small_runner(AttentionPattern(shift)), vocabulary(), specs, pattern=AttentionPattern(shift))
    for spec, answer in zip(specs, answers, strict=True):
        tokens, taken = published(plain, list(spec.prompt), alg, steps, shift)
        assert answer.canvas.tolist() == tokens
        assert answer.steps == len(taken) == steps


def drawn(params: dict[str, Any], seeds: int, temperature: float = 0.0) -> list[list[int]]:
    specs = [
        Spec([5, 6, 7], LENGTH, "dream", {**WHOLE, **params}, Sampling(temperature, seed=seed)) for seed in range(seeds)
    ]
    return [sequence.canvas.tolist() for sequence in run(small_runner(), vocabulary(), specs)]


@pytest.mark.parametrize("params", [{"alg": "origin"}, {"alg": "entropy", "alg_temp": 2.0}], ids=str)
def test_a_seed_gives_the_same_order_and_another_seed_another(params: dict[str, Any]) -> None:
    """At temperature 0 too: the order of the commits is drawn, and answers follow from it."""
    answers = drawn(params, 8)
    assert answers == drawn(params, 8)
    assert len({tuple(answer) for answer in answers}) > 4


def test_a_cold_draw_of_positions_is_the_ranking() -> None:
    assert drawn({"alg_temp": 1e-6}, 1) == drawn({}, 1)


def open_step(slot: int, rule: DeviceCommitRule, size: int, sampling: Sampling) -> tuple[Placement, Row]:
    start, end = len(PROMPT), len(PROMPT) + size
    row = Row(slot, 0, end, end, (Span(start, end, rule),), sampling, step=3)
    return Placement(slot, np.array(PROMPT, np.int32), (slot,)), row


def committed(rule: DeviceCommitRule, seeds: int, size: int = 8) -> Counter[tuple[int, ...]]:
    """Which of `size` open positions commit, over many seeds; always at the same chances."""
    runner, counts = small_runner(), Counter[tuple[int, ...]]()
    for first in range(0, seeds, 32):
        steps = [open_step(slot, rule, size, Sampling(seed=first + slot)) for slot in range(32)]
        result = runner.execute(StepPlan(tuple(p for p, _ in steps), tuple(row for _, row in steps)))
        for tokens in result.tokens.reshape(32, size):
            counts[tuple(np.flatnonzero(tokens != MASK).tolist())] += 1
    return counts


def test_origin_takes_each_mask_by_its_chance() -> None:
    """8 positions at 0.3: within four standard deviations, for each position and for their number."""
    counts = committed(DeviceCommitRule(0, 0.7, measure=Measure.RANDOM), SEEDS)
    total = counts.total()
    for position in range(8):
        share = sum(n for some, n in counts.items() if position in some) / total
        assert abs(share - 0.3) < 4 * math.sqrt(0.21 / total)
    mean = sum(len(some) * n for some, n in counts.items()) / total
    assert abs(mean - 2.4) < 4 * math.sqrt(8 * 0.21 / total)


def test_a_noisy_rule_draws_positions_without_replacement() -> None:
    """The first by softmax(measure / noise), the second among the rest by the same: all 12 pairs of 4 positions."""
    noise, size = 0.4, 4
    runner = small_runner()
    placement, row = open_step(0, DeviceCommitRule(0, math.inf, measure=Measure.ENTROPY), size, GREEDY)
    measured = runner.execute(StepPlan((placement,), (row,))).measured
    assert measured is not None
    weights = np.exp(measured / noise) / np.exp(measured / noise).sum()
    counts = committed(DeviceCommitRule(2, math.inf, measure=Measure.ENTROPY, noise=noise), SEEDS, size)
    assert 0.01 < weights.min() < 0.9 * weights.max()
    for i in range(size):
        for j in range(i + 1, size):
            want = weights[i] * weights[j] * (1 / (1 - weights[i]) + 1 / (1 - weights[j]))
            assert abs(counts[i, j] / SEEDS - want) < 4 * math.sqrt(want / SEEDS)
