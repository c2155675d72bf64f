"""Decoders that compute several rows of one request in a step: what they promise about the answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import Sampling
from asynclane.scheduler.decoding.attention_pattern import AttentionPattern
from asynclane.scheduler.decoding.params import ParamError
from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.decoding.vocabulary import Vocabulary

from ..support.driver import Ask, run
from ..support.scale import part
from .test_golden import GOLDEN

LENGTH = 32
PROMPTS = [prompt["prompt_ids"] for prompt in GOLDEN["prompts"][:2]]
BRANCHING = ("blockbatch", "freedave", "lopa")


def answers(runner: Runner, vocabulary: Vocabulary, decoder: str, **knobs: Any) -> list[tuple[list[int], int]]:
    asks = [Ask(prompt, LENGTH, decoder, {"early_stop": False} | knobs) for prompt in PROMPTS]
    return [(sequence.canvas.tolist(), sequence.steps) for sequence in run(runner, vocabulary, asks)]


@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_freedave_answers_as_one_token_a_call_does_in_fewer_calls(
    cache: str, runner: Runner, vocabulary: Vocabulary
) -> None:
    guessing = answers(runner, vocabulary, "freedave", cache=cache, block_length=16)
    plain = answers(runner, vocabulary, "llada", cache=cache, block_length=16)
    assert [tokens for tokens, _ in guessing] == [tokens for tokens, _ in plain]
    assert all(3 * calls < 2 * LENGTH for _, calls in guessing)


def test_one_row_is_the_decoder_without_branches(runner: Runner, vocabulary: Vocabulary) -> None:
    assert answers(runner, vocabulary, "freedave", draft_steps=1) == answers(runner, vocabulary, "llada", cache="dual")
    assert answers(runner, vocabulary, "lopa", branches=1) == answers(runner, vocabulary, "fast-dllm", cache="dual")


def test_an_answer_is_the_same_alone_and_in_a_crowd(runner: Runner, vocabulary: Vocabulary) -> None:
    """Drawn at random too."""
    few = {"blockbatch": {"branches": 2}, "freedave": {"draft_steps": 3}, "lopa": {"branches": 2}}
    drawn = Sampling(temperature=1.0, seed=3)
    asks = [Ask(PROMPTS[0], LENGTH, name, few[name], drawn) for name in BRANCHING]
    asks += [Ask(PROMPTS[1], LENGTH, name, few[name]) for name in BRANCHING]
    others = [Ask(PROMPTS[number % 2], 1 + number, "asynclane", {"lookahead": 1}) for number in range(26)]
    crowd = run(runner, vocabulary, [*asks, *others])
    for ask, sequence in part(zip(asks, crowd, strict=False), 4):
        (alone,) = run(runner, vocabulary, [ask])
        assert (alone.canvas.tolist(), alone.steps) == (sequence.canvas.tolist(), sequence.steps), ask.decoder


@pytest.mark.parametrize("decoder", BRANCHING)
def test_the_shortest_request_is_answered(decoder: str, runner: Runner, vocabulary: Vocabulary) -> None:
    (sequence,) = run(runner, vocabulary, [Ask([7], 1, decoder)])
    assert sequence.canvas.tolist() != [vocabulary.mask_id]


@pytest.mark.parametrize("decoder", BRANCHING)
def test_scores_are_told_or_refused(decoder: str, runner: Runner, vocabulary: Vocabulary) -> None:
    ask = Ask(PROMPTS[0], 8, decoder, {"early_stop": False}, ranks=2)
    if decoder != "freedave":
        with pytest.raises(ParamError, match=f"'{decoder}' does not know the probability of a token"):
            run(runner, vocabulary, [ask])
        return
    plain = Ask(PROMPTS[0], 8, "llada", {"early_stop": False, "cache": "dual"}, ranks=2)
    books = [sequence.scorebook for sequence in run(runner, vocabulary, [ask, plain])]
    guessed, counted = (book.part(0, 8) for book in books if book is not None)
    np.testing.assert_array_equal(guessed.logprobs, counted.logprobs)
    np.testing.assert_array_equal(guessed.ranked, counted.ranked)


def test_a_rule_with_rows_of_its_own_is_for_its_own_decoder() -> None:
    for rule in BRANCHING:
        with pytest.raises(ParamError, match="rule must be one of"):
            resolve("asynclane", {"rule": rule}, 64)


def test_blockbatch_is_refused_where_no_position_sees_behind_its_block() -> None:
    with pytest.raises(ParamError, match="this model"):
        resolve("blockbatch", {}, 64, AttentionPattern(block_size=4))
