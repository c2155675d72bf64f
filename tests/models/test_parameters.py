"""Parameters of a request change its answer as they say, on the real network."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from asynclane.models.exec.runner import Runner
from asynclane.scheduler import Outcome, Preferences, Sampling, Vocabulary
from asynclane.scheduler.contract import GREEDY

from ..support.cases import REPEAT, STORY, TEXT
from ..support.driver import Spec, full_logits, run
from ..support.scale import part

MASK = TEXT.mask_id


def test_penalties_make_answers_repeat_less(runner: Runner, vocabulary: Vocabulary) -> None:
    def measured(*given: Preferences) -> Iterator[tuple[float, int]]:
        """The share of distinct tokens, and the count of the most frequent one."""
        for done in run(runner, vocabulary, [Spec(STORY, 96, preferences=preferences) for preferences in given]):
            counts = Counter(done.text)
            yield len(counts) / counts.total(), max(counts.values())

    (distinct, most), frequency, presence, negative, high, low = measured(
        Preferences(),
        Preferences(frequency=2.0),
        Preferences(presence=2.0),
        Preferences(presence=-2.0, frequency=-2.0),
        Preferences(repetition=1.5),
        Preferences(repetition=0.5),
    )
    assert frequency[1] < most
    assert presence[0] > distinct
    assert negative[1] > most
    assert high[0] > distinct
    assert low[0] < distinct


def test_a_banned_token_never_comes_and_a_pushed_one_always(runner: Runner, vocabulary: Vocabulary) -> None:
    (plain,) = run(runner, vocabulary, [Spec(STORY, 32)])
    first = plain.text[0]
    bans = Preferences(bias=dict.fromkeys(plain.text[:4], -math.inf))
    banned, pushed = run(
        runner, vocabulary, [Spec(STORY, 32, preferences=p) for p in (bans, Preferences(bias={first: 100}))]
    )
    assert not set(banned.text) & set(bans.bias)
    assert pushed.text == [first] * 32


def test_an_answer_that_may_not_end_fills_its_canvas_and_one_with_a_least_length_is_as_long(
    runner: Runner, vocabulary: Vocabulary
) -> None:
    plain, endless, long = run(
        runner,
        vocabulary,
        [Spec(REPEAT, 64), Spec(REPEAT, 64, preferences=Preferences(ignore_end=True)),
         Spec(REPEAT, 64, preferences=Preferences(min_tokens=40))],
    )  # fmt: skip
    assert len(plain.text) < 40
    assert plain.outcome is Outcome.STOP
    assert (len(endless.text), endless.outcome) == (64, Outcome.LENGTH)
    assert len(long.text) >= 40
    assert not set(long.text[:40]) & TEXT.end_ids


def test_top_k_and_min_p_of_the_best_alone_are_greedy(runner: Runner, vocabulary: Vocabulary) -> None:
    specs = [
        Spec(STORY, 32, sampling=s) for s in (GREEDY, Sampling(1.5, seed=1, top_k=1), Sampling(1.5, seed=1, min_p=1.0))
    ]
    greedy, *narrow = run(runner, vocabulary, [*specs, Spec(STORY, 32, sampling=Sampling(1.5, seed=1))])
    assert [done.text == greedy.text for done in narrow] == [True, True, False]


@pytest.mark.parametrize("sampling", part([GREEDY, Sampling(1.0, seed=4)], 2))
def test_a_logprob_is_that_of_the_token_at_the_step_that_committed_it(
    sampling: Sampling, runner: Runner, vocabulary: Vocabulary
) -> None:
    """The canvas before a step is put together from what later ones left, and computed by itself."""
    preferences = Preferences(bias={TEXT.encode(".", specials=False)[0]: 1.5})
    spec = Spec(STORY, 48, "llada", {"steps": 16, "early_stop": False}, sampling, preferences, ranks=2)
    (done,) = run(runner, vocabulary, [spec])
    scores = done.scores
    assert scores is not None
    assert set(scores.steps.tolist()) == set(range(done.steps))
    for step in range(0, done.steps, 8):
        before = np.where(scores.steps < step, done.canvas, MASK).astype(np.int32)
        logits = full_logits(runner, np.concatenate((np.array(STORY, np.int32), before)), MASK)[len(STORY) :]
        for token, delta in preferences.bias.items():
            logits[:, token] += delta
        logprobs = logits.log_softmax(-1)
        here = np.flatnonzero(scores.steps == step)
        chosen = logprobs[torch.from_numpy(here), torch.from_numpy(done.canvas[here]).long()]
        np.testing.assert_allclose(scores.logprobs[here], chosen.numpy(), atol=1e-3)
        best = logprobs[torch.from_numpy(here)].topk(2)
        assert scores.ranked[here].tolist() == best.indices.tolist()
        np.testing.assert_allclose(scores.ranked_logprobs[here], best.values.numpy(), atol=1e-3)
