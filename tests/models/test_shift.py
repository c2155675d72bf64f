"""A network that predicts each token at the position before it (Dream) is served as any other is, by every decoder."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import (
    GREEDY,
    DeviceCommitRule,
    Placement,
    Row,
    Sampling,
    Span,
    StepPlan,
)
from asynclane.scheduler.decoding.attention_pattern import AttentionPattern
from asynclane.scheduler.logit_bias import Preferences
from asynclane.scheduler.memory.pages import Limits
from asynclane.scheduler.step_cost import Halving, StepCost

from ..support.driver import LIMITS, Ask, run
from ..support.fakes import END, IDS, vocabulary
from ..support.small_network import Ahead, small_runner

SHIFTED = AttentionPattern(logit_shift=1)
DECODERS = [
    ("asynclane", {"threshold": 0.6, "later_threshold": 0.7, "draft_threshold": 0.8}),
    ("asynclane", {"threshold": 0.6, "refresh_every": 1, "max_lanes": 8, "block_length": 8}),
    ("asynclane", {"threshold": 0.9, "siblings": "isolated", "max_lanes": 3, "boundary": "comma"}),
    ("asynclane", {"threshold": 0.5, "settle": False, "boundary": "stride"}),
    ("asynclane", {"threshold": 0.6, "reuse": False, "refresh_every": 2, "refresh_on": "steps", "stable_steps": 1}),
    ("asynclane", {"threshold": 0.6, "cache": "prefix", "lookahead": "canvas"}),
    ("fast-dllm", {"threshold": 0.5, "cache": "dual", "block_length": 8}),
    ("fast-dllm", {"factor": 1.0, "cache": "prefix", "block_length": 8}),
    ("blockbatch", {"branches": 2, "smallest_block": 4}),
    ("freedave", {"block_length": 12, "draft_steps": 3}),
    ("lopa", {"block_length": 12, "cache": "prefix", "branches": 2}),
    ("llada", {"steps": 12, "block_length": 12, "cache": "dual"}),
    ("dream", {"alg": "topk_margin", "steps": 12, "cache": "prefix"}),
    ("dream", {"alg": "origin", "steps": 12, "cache": "dual"}),
    ("dream", {"alg_temp": 0.5}),
]
WITHOUT_CACHE = [
    ("asynclane", {"threshold": 0.6, "cache": "none", "boundary": "comma"}),
    ("fast-dllm", {"threshold": 0.5, "cache": "none"}),
    ("llada", {"steps": 18, "block_length": 12}),
    *[("dream", {"alg": alg, "steps": 16}) for alg in ("origin", "maskgit_plus", "topk_margin", "entropy")],
]


@pytest.fixture(scope="module")
def shifted() -> Runner:
    return small_runner(shift=1)


def prompt_of(rng: random.Random, size: int) -> list[int]:
    return [rng.randrange(2, 19) for _ in range(size)]


def crowd(decoders: list[tuple[str, dict[str, object]]] = DECODERS) -> list[Ask]:
    """Every decoder, greedy and sampled; every third one with a suffix; prompts that end with a page, and others."""
    rng, asks = random.Random(2), list[Ask]()
    for number, (name, knobs) in enumerate(decoders):
        hot = Sampling(0.8, 0.9, seed=rng.getrandbits(63)) if number % 2 else Sampling(seed=number)
        prompt = prompt_of(rng, 1 if not number else 16 * (number % 3) + 16 * (number % 2) or 19)
        suffix = prompt_of(rng, 5) if number % 3 == 1 and knobs.get("siblings") != "isolated" else []
        asks.append(Ask(prompt, 36, name, knobs, hot, suffix=suffix, ranks=2 if number % 4 == 1 else None))
    asks[3] = replace(asks[3], preferences=Preferences(presence=0.5, min_tokens=9, bias={6: -3.0}))
    return asks


def test_the_logits_of_a_position_are_those_of_the_state_before_it(shifted: Runner) -> None:
    ids = np.array(prompt_of(random.Random(0), 20), np.int32)
    spans = [Span(1, 7, DeviceCommitRule(1, 0.5)), Span(7, 20, DeviceCommitRule(1, 0.5))]

    def logits(runner: Runner, *of: Span) -> torch.Tensor:
        placement = Placement(0, ids, (0, 1))
        return runner.logits(StepPlan((placement,), (Row(0, 0, 20, 20, of, GREEDY, 0),)))

    assert torch.equal(logits(shifted, *spans), logits(small_runner(), Span(0, 19, DeviceCommitRule(1, 0.5))))


def test_a_row_without_the_state_before_its_span_is_refused(shifted: Runner) -> None:
    row = Row(0, 4, 9, 9, (Span(4, 9, DeviceCommitRule(1, 0.5)),), GREEDY, 0)
    with pytest.raises(ValueError, match="lacks the position that predicts"):
        shifted.execute(StepPlan((), (row,)))


@pytest.mark.parametrize("two", [False, True], ids=["one_step", "two_steps_in_flight"])
def test_a_network_whose_states_stand_one_earlier_gives_the_same_answers(two: bool) -> None:
    """All that a request asks of a position reaches the position, not the one that predicts it."""
    asks = crowd(WITHOUT_CACHE)
    halving = Halving(StepCost([1, 1000], [0.001, 1.0])) if two else None
    plain = run(small_runner(), vocabulary(), asks, halving=halving)
    ahead = run(small_runner(1, Ahead), vocabulary(), asks, halving=halving, pattern=SHIFTED)
    for one, other in zip(plain, ahead, strict=True):
        assert one.canvas.tolist() == other.canvas.tolist()
        assert (one.steps, one.computed_tokens) == (other.steps, other.computed_tokens)
        if one.scorebook is not None and other.scorebook is not None:
            for left, right in zip(one.scorebook.part(0, 36), other.scorebook.part(0, 36), strict=True):
                assert np.array_equal(left, right)


@pytest.mark.parametrize("kind", ["alone", "two_in_flight", "little_room"])
def test_shifted_answers_are_the_same_alone_and_in_any_crowd(kind: str, shifted: Runner) -> None:
    asks = crowd()
    together = run(shifted, vocabulary(), asks, pattern=SHIFTED)
    if kind == "alone":
        others = [run(shifted, vocabulary(), [ask], pattern=SHIFTED)[0] for ask in asks]
    elif kind == "two_in_flight":
        others = run(shifted, vocabulary(), asks, halving=Halving(StepCost([1, 9], [0.1, 9.0])), pattern=SHIFTED)
    else:
        tight = Limits(slots=3, pages=30, page_size=16, step_tokens=256, max_model_len=128, max_queue=99)
        others = run(shifted, vocabulary(), asks, tight, pattern=SHIFTED)
    for one, other in zip(together, others, strict=True):
        assert one.canvas.tolist() == other.canvas.tolist()
        assert (one.steps, one.computed_tokens) == (other.steps, other.computed_tokens)
    assert sum(sequence.tree.forks for sequence in together) > 5


@pytest.mark.parametrize("size", [31, 32, 33])
def test_choices_of_a_prompt_write_no_page_that_they_share(size: int, shifted: Runner) -> None:
    """Where the prompt ends with a page, the position that predicts the first token is in it: that page is nobody's."""
    prompt = prompt_of(random.Random(size), size)
    asks = [
        Ask(prompt, 30, knobs={"threshold": 0.6}, sampling=Sampling(1.0, seed=n), share_group="one") for n in range(4)
    ]
    together = run(shifted, vocabulary(), asks, pattern=SHIFTED)
    pages = -(-(size + 30) // LIMITS.page_size)
    assert {pages - len(sequence.holding.pages) for sequence in together} == {(size - 1) // LIMITS.page_size}
    for ask, sequence in zip(asks, together, strict=True):
        (alone,) = run(shifted, vocabulary(), [replace(ask, share_group=None)], pattern=SHIFTED)
        assert alone.canvas.tolist() == sequence.canvas.tolist()


class Verses:
    """A grammar for the answer: words of an odd number, each third place a comma, and an end behind nine of them."""

    name, failed, finished, closing = "verses", "", False, False

    def __init__(self) -> None:
        self.said = 0

    @property
    def complete(self) -> bool:
        return self.said >= 9

    def _tokens(self) -> list[int]:
        return [IDS[","]] if self.said % 3 == 2 else [*range(5, 19, 2), *[END] * self.complete]

    def allowed(self) -> np.ndarray:
        return np.array([sum(1 << token for token in self._tokens())], np.int32)

    def accept(self, token: int, room: int) -> bool:
        self.said += (fits := token in self._tokens())
        return fits

    def forced(self, room: int) -> list[int]:
        return [IDS[","]] if self.said % 3 == 2 else []


@pytest.mark.parametrize("kind", ["plain", "alone"])
def test_a_grammar_says_what_comes_at_a_position_not_at_the_one_that_predicts_it(kind: str, shifted: Runner) -> None:
    def asks(decoders: list[tuple[str, dict[str, object]]]) -> list[Ask]:
        fitting = [(n, knobs) for n, knobs in decoders if knobs.get("siblings") != "isolated" and n != "blockbatch"]
        prompt = prompt_of(random.Random(7), 21)
        return [
            Ask(prompt, 24, *decoder, Sampling(0.7, seed=n), constraint=Verses()) for n, decoder in enumerate(fitting)
        ]

    if kind == "plain":
        together = run(small_runner(1, Ahead), vocabulary(), asks(WITHOUT_CACHE), pattern=SHIFTED)
        others = run(small_runner(), vocabulary(), asks(WITHOUT_CACHE))
    else:
        together = run(shifted, vocabulary(), asks(DECODERS), pattern=SHIFTED)
        others = [run(shifted, vocabulary(), [ask], pattern=SHIFTED)[0] for ask in asks(DECODERS)]
    for one, other in zip(together, others, strict=True):
        assert one.canvas.tolist() == other.canvas.tolist()
        text = one.canvas[: min(one.end_at, len(one.canvas))]
        assert (text[2::3] == IDS[","]).all()
        assert (np.delete(text, slice(2, None, 3)) % 2 == 1).all()
        assert len(text) >= 9


def test_a_step_of_any_size_can_be_timed(shifted: Runner) -> None:
    assert all(shifted.step_seconds(tokens) > 0 for tokens in (1, 2, 65, 300))
