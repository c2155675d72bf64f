"""A network that predicts each token at the position before it (Dream): everything reaches the position it is for."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from asynclane.models.exec.runner import Runner
from asynclane.scheduler import AttentionPattern, Sampling
from asynclane.scheduler.contract import GREEDY, DeviceCommitRule, Placement, Row, Span, StepPlan

from ..support.cases import PARAMETERS, comparable
from ..support.driver import TWO_IN_FLIGHT, Spec, run
from ..support.fakes import vocabulary
from ..support.grammars import Verses
from ..support.scale import part
from ..support.small_network import Ahead, small_runner

SHIFTED = AttentionPattern(logit_shift=1)
RULE = DeviceCommitRule(1, 0.5)
WITHOUT_CACHE = [
    ("asynclane", {"threshold": 0.6, "cache": "none", "boundary": "comma"}),
    ("fast-dllm", {"threshold": 0.5, "cache": "none"}),
    ("llada", {"steps": 18, "block_length": 12}),
    *[("dream", {"alg": alg, "steps": 16}) for alg in ("origin", "maskgit_plus", "topk_margin", "entropy")],
]


@pytest.fixture(scope="module")
def shifted() -> Runner:
    return small_runner(SHIFTED)


def prompt_of(seed: int, size: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(2, 19) for _ in range(size)]


def test_the_logits_of_a_position_are_those_of_the_state_before_it(shifted: Runner) -> None:
    placement = Placement(0, np.array(prompt_of(0, 20), np.int32), (0, 1))

    def logits(runner: Runner, *spans: Span) -> torch.Tensor:
        return runner.logits(StepPlan((placement,), (Row(0, 0, 20, 20, spans, GREEDY, 0),)))

    expected = logits(small_runner(), Span(0, 19, RULE))
    assert torch.equal(logits(shifted, Span(1, 7, RULE), Span(7, 20, RULE)), expected)


def test_a_row_without_the_state_before_its_span_is_refused(shifted: Runner) -> None:
    with pytest.raises(ValueError, match="lacks the position that predicts"):
        shifted.execute(StepPlan((), (Row(0, 4, 9, 9, (Span(4, 9, RULE),), GREEDY, 0),)))


@pytest.mark.parametrize("two", [False, True], ids=["one-step", "two-steps-in-flight"])
def test_a_network_whose_states_stand_one_earlier_gives_the_same_answers(two: bool) -> None:
    """With every parameter, suffixes and a grammar, alone in its step or not."""
    specs = [
        Spec(prompt_of(number, 16 + number), 36, decoder, params, suffix=prompt_of(1, 5 * (number % 2)), **parameter)
        for number, parameter in enumerate(PARAMETERS.values())
        for decoder, params in WITHOUT_CACHE
    ]
    specs = part(specs, 4 if two else 8, seed="shift")
    sampling = Sampling(0.7, seed=5)
    specs += [Spec(prompt_of(7, 21), 24, *decoder, sampling, constraint=Verses) for decoder in WITHOUT_CACHE]
    halving = TWO_IN_FLIGHT if two else None
    plain = run(small_runner(), vocabulary(), specs, halving=halving)
    ahead = run(small_runner(SHIFTED, Ahead), vocabulary(), specs, halving=halving, pattern=SHIFTED)
    for spec, one, other in zip(specs, plain, ahead, strict=True):
        assert comparable(one) == comparable(other), spec


def test_a_step_of_any_size_can_be_timed(shifted: Runner) -> None:
    assert all(shifted.step_seconds(tokens) > 0 for tokens in (1, 2, 65, 300))


def test_a_timed_step_computes_different_tokens(shifted: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mixture would send equal ones to the same few experts."""
    placed: list[Placement] = []
    place = shifted.place

    def noted(placements: Sequence[Placement]) -> None:
        placed.extend(placements)
        place(placements)

    monkeypatch.setattr(shifted, "place", noted)
    shifted.step_seconds(60)
    tokens = np.concatenate([placement.prompt for placement in placed])
    assert len(tokens) == 60
    assert len(set(tokens.tolist())) > 10
