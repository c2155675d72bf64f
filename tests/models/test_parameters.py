"""Parameters do what they say on the real network, and an answer with them depends on nothing else."""

from __future__ import annotations

import math
from collections import Counter
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
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.scheduler.logit_bias import Preferences
from asynclane.scheduler.request import Outcome
from asynclane.scheduler.sequence import Sequence
from asynclane.scheduler.step_cost import Halving, StepCost
from asynclane.server.text.tokenizer import Tokenizer

from ..support.driver import LIMITS, MODEL, Ask, run
from .test_invariance import DECODERS, QUESTIONS

TEXT = Tokenizer(MODEL)
STORY = TEXT.encode_chat([{"role": "user", "content": QUESTIONS[4]}])
REPEAT = TEXT.encode_chat([{"role": "user", "content": QUESTIONS[7]}])
MASK = TEXT.mask_id

PARAMETERS = {
    "presence": {"preferences": Preferences(presence=1.5)},
    "frequency": {"preferences": Preferences(frequency=1.0), "ranks": 5},
    "bias": {"preferences": Preferences(bias={TEXT.encode(" fox", specials=False)[0]: -math.inf, 40: 3.0})},
    "endless": {"preferences": Preferences(ignore_end=True)},
    "min_tokens": {"preferences": Preferences(presence=0.5, min_tokens=20)},
    "logprobs": {"ranks": 20},
    "narrow": {"sampling": Sampling(1.0, 0.95, 11, top_k=8, min_p=0.02)},
    "all": {
        "preferences": Preferences(-0.5, 0.5, {17: 2.0}, min_tokens=25),
        "sampling": Sampling(0.9, 1.0, 12, top_k=40),
        "ranks": 3,
    },
}


def facts(sequence: Sequence) -> tuple[object, ...]:
    book = sequence.scorebook
    scores = () if book is None else tuple(x.tolist() for x in book.part(0, sequence.sent))
    return sequence.canvas.tolist(), sequence.steps, sequence.computed_tokens, scores


def answer(sequence: Sequence) -> list[int]:
    return [int(token) for token in sequence.canvas[: sequence.sent]]


@pytest.mark.parametrize("decoder", [DECODERS[0], DECODERS[2], DECODERS[5]], ids=str)
def test_answers_with_any_parameter_are_the_same_alone_and_in_a_crowd(
    decoder: tuple[str, dict[str, object]], runner: Runner, vocabulary: Vocabulary
) -> None:
    asks = [
        replace(Ask(prompt, 32, *decoder, Sampling(0.8, 1.0, number)), **extra)  # type: ignore[arg-type]
        for number, (extra, prompt) in enumerate(zip([*PARAMETERS.values()], [STORY, REPEAT] * 4, strict=True))
    ]
    for ask, together in zip(asks, run(runner, vocabulary, asks), strict=True):
        (alone,) = run(runner, vocabulary, [ask])
        assert facts(alone) == facts(together)


def test_penalties_make_answers_repeat_less(runner: Runner, vocabulary: Vocabulary) -> None:
    """A share of distinct tokens, and the count of the most frequent one."""

    def measure(preferences: Preferences) -> tuple[float, int]:
        (done,) = run(runner, vocabulary, [Ask(STORY, 96, preferences=preferences)])
        counts = Counter(answer(done))
        return len(counts) / counts.total(), max(counts.values())

    distinct, most = measure(Preferences())
    assert measure(Preferences(frequency=2.0))[1] < most
    assert measure(Preferences(presence=2.0))[0] > distinct
    assert measure(Preferences(presence=-2.0, frequency=-2.0))[1] > most


def test_a_banned_token_never_comes_and_a_pushed_one_always(runner: Runner, vocabulary: Vocabulary) -> None:
    (plain,) = run(runner, vocabulary, [Ask(STORY, 64)])
    first = answer(plain)[0]
    bans = Preferences(bias=dict.fromkeys(answer(plain)[:4], -math.inf))
    banned, pushed = run(
        runner, vocabulary, [Ask(STORY, 64, preferences=p) for p in (bans, Preferences(bias={first: 100}))]
    )
    assert not set(answer(banned)) & set(bans.bias)
    assert answer(pushed) == [first] * 64


def test_an_answer_that_may_not_end_fills_its_canvas_and_one_with_a_least_length_is_as_long(
    runner: Runner, vocabulary: Vocabulary
) -> None:
    plain, endless, long = run(
        runner,
        vocabulary,
        [Ask(REPEAT, 64), Ask(REPEAT, 64, preferences=Preferences(ignore_end=True)),
         Ask(REPEAT, 64, preferences=Preferences(min_tokens=40))],
    )  # fmt: skip
    assert len(answer(plain)) < 40
    assert plain.outcome is Outcome.STOP
    assert (len(answer(endless)), endless.outcome) == (64, Outcome.LENGTH)
    assert len(answer(long)) >= 40
    assert not set(answer(long)[:40]) & TEXT.end_ids


def test_top_k_and_min_p_of_the_best_alone_are_greedy(runner: Runner, vocabulary: Vocabulary) -> None:
    asks = [
        Ask(STORY, 64, sampling=s) for s in (GREEDY, Sampling(1.5, seed=1, top_k=1), Sampling(1.5, seed=1, min_p=1.0))
    ]
    greedy, *narrow = run(runner, vocabulary, [*asks, Ask(STORY, 64, sampling=Sampling(1.5, seed=1))])
    assert [answer(done) == answer(greedy) for done in narrow] == [True, True, False]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, seed=4)], ids=["greedy", "sampled"])
def test_a_logprob_is_that_of_the_token_at_the_step_that_committed_it(
    sampling: Sampling, runner: Runner, vocabulary: Vocabulary
) -> None:
    """The canvas before each step is put together from what later ones left, and computed anew by itself."""
    preferences = Preferences(bias={TEXT.encode(".", specials=False)[0]: 1.5})
    ask = Ask(STORY, 48, "llada", {"steps": 16, "early_stop": False}, sampling, preferences, ranks=2)
    (done,) = run(runner, vocabulary, [ask])
    assert done.scorebook is not None
    scores = done.scorebook.part(0, 48)
    assert set(scores.steps.tolist()) == set(range(done.steps))
    for step in range(0, done.steps, 5):
        before = np.where(scores.steps < step, done.canvas, MASK).astype(np.int32)
        canvas = np.concatenate((np.array(STORY, np.int32), before))
        span = Span(len(STORY), len(canvas), DeviceCommitRule(0, 2.0))
        plan = StepPlan(
            (Placement(0, canvas, tuple(range(-(-len(canvas) // LIMITS.page_size)))),),
            (Row(0, 0, len(canvas), len(canvas), (span,), GREEDY, 0),),
        )
        logits = runner.logits(plan).clone()
        for token, delta in preferences.bias.items():
            logits[:, token] += delta
        logits[:, MASK] = -math.inf
        logprobs = logits.double().log_softmax(-1)
        here = np.flatnonzero(scores.steps == step)
        chosen = logprobs[torch.from_numpy(here), torch.from_numpy(done.canvas[here]).long()]
        np.testing.assert_allclose(scores.logprobs[here], chosen.numpy(), atol=1e-3)
        best = logprobs[torch.from_numpy(here)].topk(2)
        assert scores.ranked[here].tolist() == best.indices.tolist()
        np.testing.assert_allclose(scores.ranked_logprobs[here], best.values.numpy(), atol=1e-3)


def test_only_steps_with_a_request_that_asks_tell_scores(runner: Runner) -> None:
    span = Span(4, 8, DeviceCommitRule(1, 2.0))
    placed = Placement(0, np.array([6, 7, 8, 9], np.int32), (0,))
    rows = [Row(0, 0, 8, 8, (span,), GREEDY, 0, ranks=ranks) for ranks in (None, 0, 1)]
    none, chosen, ranked = (runner.execute(StepPlan((placed,), (row,))).scores for row in rows)
    assert none is None
    assert chosen is not None
    assert ranked is not None
    assert (chosen.ranked.shape, ranked.ranked.shape) == ((4, 0), (4, 20))
    assert np.array_equal(chosen.chosen, ranked.chosen)


CHOICES = [Sampling(1.0, seed=seed) for seed in range(4)]


@pytest.mark.parametrize("question", [0, 1, 4])
def test_choices_of_one_prompt_share_its_pages_and_answer_as_each_does_alone(
    question: int, runner: Runner, vocabulary: Vocabulary
) -> None:
    prompt = TEXT.encode_chat([{"role": "user", "content": QUESTIONS[question]}])
    asks = [Ask(prompt, 64, sampling=sampling, share_group="one") for sampling in CHOICES]
    together = run(runner, vocabulary, asks)
    common = len(prompt) // LIMITS.page_size
    assert common > 0
    for sequence, ask in zip(together, asks, strict=True):
        (alone,) = run(runner, vocabulary, [replace(ask, share_group=None)])
        assert alone.canvas.tolist() == sequence.canvas.tolist()
        saved = 0 if sequence is together[0] else common * LIMITS.page_size
        assert alone.computed_tokens - sequence.computed_tokens == saved
        assert len(alone.holding.pages) - len(sequence.holding.pages) == common


def test_choices_that_wait_for_a_place_answer_the_same(runner: Runner, vocabulary: Vocabulary) -> None:
    """The first may have left, with the pages, before others come."""
    asks = [Ask(STORY, 48, sampling=sampling, share_group="one") for sampling in CHOICES]
    roomy = run(runner, vocabulary, asks)
    for slots in (1, 2):
        tight = run(runner, vocabulary, asks, replace(LIMITS, slots=slots, pages=64, step_tokens=1024))
        assert [answer(a) for a in tight] == [answer(a) for a in roomy]
    two_at_once = Halving(StepCost([1, 1000], [0.001, 1.0]))
    assert [answer(a) for a in run(runner, vocabulary, asks, halving=two_at_once)] == [answer(a) for a in roomy]


@pytest.mark.parametrize(
    ("decoder", "knobs"),
    [
        ("asynclane", {"refresh_every": 1}),
        ("asynclane", {"siblings": "isolated"}),
        ("fast-dllm", {}),
        ("llada", {"steps": 8}),
    ],
    ids=str,
)
def test_where_a_prompt_is_computed_again_nothing_is_shared(
    decoder: str, knobs: dict[str, object], runner: Runner, vocabulary: Vocabulary
) -> None:
    asks = [Ask(STORY, 32, decoder, knobs, sampling, share_group="one") for sampling in CHOICES[:2]]
    for sequence, ask in zip(run(runner, vocabulary, asks), asks, strict=True):
        (alone,) = run(runner, vocabulary, [replace(ask, share_group=None)])
        assert facts(alone) == facts(sequence)
