"""An answer does not depend on what else the server is doing: alone or in a crowd, the tokens are the same."""

from __future__ import annotations

import random

import pytest

from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import Sampling
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.scheduler.memory.pages import Limits
from asynclane.scheduler.sequence import Sequence
from asynclane.scheduler.step_cost import Halving, StepCost
from asynclane.server.text.tokenizer import Tokenizer

from ..support.driver import MODEL, Ask, run

QUESTIONS = [
    "What is the capital of France?",
    "Tom has 12 books. He buys 7 more books. How many books does Tom have now?",
    "Sort these numbers from small to large: 41, 7, 93, 20.",
    "Write a Python function `count_even(numbers)` that returns the number of even numbers in a list.",
    "Tell me a short story about Mia and a fox at the park.",
    "Reverse this list: 5, 3, 8.",
    "Who are you?",
    "Repeat this list: 1, 2, 3, 4, 5, 6.",
]

DECODERS = [
    ("asynclane", {}),
    ("asynclane", {"threshold": 0.7, "refresh_every": 1, "max_lanes": 8}),
    ("asynclane", {"siblings": "isolated", "threshold": 0.99, "max_lanes": 3}),
    ("asynclane", {"reuse": False, "refresh_every": 2, "refresh_on": "steps", "end_threshold": 0.0, "stable_steps": 1}),
    ("asynclane", {"siblings": "commit", "boundary": "comma"}),
    ("fast-dllm", {"cache": "dual"}),
    ("fast-dllm", {"cache": "prefix", "factor": 1.0}),
    ("fast-dllm", {"cache": "none", "threshold": 0.8}),
    ("llada", {"steps": 16}),
    ("dream", {"steps": 12, "alg": "topk_margin", "cache": "prefix"}),
    ("dream", {"steps": 12, "alg": "origin"}),
    ("freedave", {"commit_threshold": 0.9, "draft_steps": 2}),
    ("lopa", {"branches": 2}),
    ("blockbatch", {"branches": 2}),
]


def crowd(sampled: bool) -> list[Ask]:
    """Sixteen requests that differ in prompt, length, decoder, temperature and seed."""
    text, rng = Tokenizer(MODEL), random.Random(11)
    asks = []
    for number in range(16):
        question = QUESTIONS[number % len(QUESTIONS)]
        name, knobs = DECODERS[number % len(DECODERS)]
        hot = Sampling(rng.choice([0.5, 1.0, 1.3]), rng.choice([1.0, 0.9]), seed=rng.getrandbits(63))
        prompt = text.encode_chat([{"role": "user", "content": question}])
        asks.append(Ask(prompt, 48 + 32 * (number % 3 == 1), name, knobs, hot if sampled else Sampling()))
    return asks


@pytest.fixture(scope="module")
def sampled(runner: Runner, vocabulary: Vocabulary) -> list[Sequence]:
    """The answers of the sampled crowd."""
    return run(runner, vocabulary, crowd(sampled=True))


def test_two_steps_in_flight_change_no_answer(sampled: list[Sequence], runner: Runner, vocabulary: Vocabulary) -> None:
    always = Halving(StepCost([1, 1000], [0.001, 1.0]))
    for one, two in zip(sampled, run(runner, vocabulary, crowd(sampled=True)[:10], halving=always), strict=False):
        assert one.canvas.tolist() == two.canvas.tolist()
        assert (one.steps, one.computed_tokens) == (two.steps, two.computed_tokens)


def assert_alone(asks: list[Ask], together: list[Sequence], runner: Runner, vocabulary: Vocabulary) -> None:
    for ask, sequence in zip(asks, together, strict=True):
        (alone,) = run(runner, vocabulary, [ask])
        assert alone.canvas.tolist() == sequence.canvas.tolist()
        assert alone.steps == sequence.steps
        assert alone.computed_tokens == sequence.computed_tokens


def test_sixteen_sampled_requests_answer_as_each_does_alone(
    sampled: list[Sequence], runner: Runner, vocabulary: Vocabulary
) -> None:
    assert_alone(crowd(sampled=True), sampled, runner, vocabulary)


def test_sixteen_mixed_requests_answer_as_each_does_alone(runner: Runner, vocabulary: Vocabulary) -> None:
    asks = crowd(sampled=False)
    asks[::4] = [Ask(a.prompt, a.max_tokens, a.decoder, a.knobs, Sampling(1.0, 0.9, 5)) for a in asks[::4]]
    assert_alone(asks, run(runner, vocabulary, asks), runner, vocabulary)


def test_waiting_for_budget_or_pages_changes_no_answer(
    sampled: list[Sequence], runner: Runner, vocabulary: Vocabulary
) -> None:
    """So little room that requests queue for pages and take turns in steps."""
    tight = Limits(slots=3, pages=64, page_size=16, step_tokens=1024, max_model_len=1024, max_queue=256)
    squeezed = run(runner, vocabulary, crowd(sampled=True), tight)
    assert [s.canvas.tolist() for s in squeezed] == [s.canvas.tolist() for s in sampled]


def test_another_seed_gives_another_answer(runner: Runner, vocabulary: Vocabulary) -> None:
    prompt = Tokenizer(MODEL).encode_chat([{"role": "user", "content": QUESTIONS[4]}])
    seeds = [Ask(prompt, 96, sampling=Sampling(1.0, 1.0, seed)) for seed in range(4)]
    answers = {tuple(s.canvas.tolist()) for s in run(runner, vocabulary, seeds)}
    assert len(answers) == 4
