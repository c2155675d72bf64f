"""Blocks that are coarse while a model thinks and fine from there on, on a network that attends within blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asynclane.models.exec.runner import Runner
from asynclane.scheduler import PLAIN, AttentionPattern, ParamError, Scheduler, Vocabulary, resolve
from asynclane.scheduler.decoding.compatibility import VocabularyFacts, refuse
from asynclane.scheduler.decoding.vocabulary import LINE

from ..support.cases import TEXT, chat, comparable, network
from ..support.driver import LIMITS, Answer, Spec, full_logits, run
from ..support.scale import LONG, part

BLOCK = 16
PATTERN = AttentionPattern(block_size=BLOCK)
QUESTIONS = (
    "Tom has 12 books. Then he finds 8 books at the park. How many books does Tom have now?",
    "Write a Python function that adds two numbers.",
    "What is the capital of France?",
)
PROMPTS = [chat(question) for question in QUESTIONS]
LENGTH = 60
LINES: dict[str, Any] = {"turn": "newline", "early_stop": False}


@pytest.fixture
def runner() -> Runner:
    return network("tiny-sdar").runner


def answer(runner: Runner, vocabulary: Vocabulary, prompt: list[int], decoder: str, **params: object) -> Answer:
    return run(runner, vocabulary, [Spec(prompt, LENGTH, decoder, params, ranks=2)], pattern=PATTERN)[0]


def written_out(
    runner: Runner, vocabulary: Vocabulary, prompt: list[int], coarse: int, fine: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """An answer by BACD in lanes that are cut where the first line has ended, and the lane of each forward."""
    x = np.array([*prompt, *[TEXT.mask_id] * LENGTH], np.int32)
    forwards: list[tuple[int, int]] = []
    after_turn = False

    def border(position: int) -> int:
        return min((position // fine + 1) * fine, len(x))

    while (x == TEXT.mask_id).any():
        start = int((x == TEXT.mask_id).argmax())
        end = border(start) if after_turn else min(max((start + coarse) // BLOCK, start // BLOCK + 1) * BLOCK, len(x))
        had: list[float] = []
        while (x[start:end] == TEXT.mask_id).any():
            forwards.append((start, end))
            size = -(-end // BLOCK) * BLOCK
            seen = np.pad(x, (0, size), constant_values=TEXT.mask_id)[:size]
            logits = full_logits(runner, seen, TEXT.mask_id)[start:end]
            chance, best = (found.numpy() for found in logits.softmax(-1).max(-1))
            open_ = x[start:end] == TEXT.mask_id
            bar = float(np.clip(np.mean(had) if had else chance[open_].max(), 0.6, 0.9))
            commits = open_ & (chance >= bar)
            if not commits.any():
                commits[np.where(open_, chance, -1.0).argmax()] = True
            x[start:end][commits] = best[commits]
            had += chance[commits].tolist()
            marks = np.flatnonzero(vocabulary.classes[x[len(prompt) :]] & LINE)
            if len(marks) and not after_turn:
                after_turn, end = True, min(end, border(len(prompt) + int(marks[0])))
    return x[len(prompt) :].tolist(), forwards


@pytest.mark.parametrize(("coarse", "fine"), [pytest.param(16, 1, marks=LONG), (16, 4), (48, 16)])
@pytest.mark.parametrize("prompt", part(PROMPTS[:2], 2), ids=str)
def test_answers_are_those_of_the_method_written_out(
    coarse: int, fine: int, prompt: list[int], runner: Runner, vocabulary: Vocabulary
) -> None:
    tokens, forwards = written_out(runner, vocabulary, prompt, coarse, fine)
    ours = answer(runner, vocabulary, prompt, "tccf", block_length=coarse, fine_length=fine, **LINES)
    assert ours.canvas.tolist() == tokens
    assert ours.steps == len(forwards)


def test_fine_blocks_as_long_as_coarse_ones_are_bacd(runner: Runner, vocabulary: Vocabulary) -> None:
    for prompt in part(PROMPTS[:2], 2):
        same = answer(runner, vocabulary, prompt, "tccf", fine_length=BLOCK, **LINES)
        for decoder, rule in (("bacd", {}), ("fast-dllm", {"rule": "bacd"})):
            assert comparable(same) == comparable(answer(runner, vocabulary, prompt, decoder, early_stop=False, **rule))


def test_an_answer_without_the_mark_is_bacd(vocabulary: Vocabulary, runner: Runner) -> None:
    prompt = PROMPTS[2]
    plain = answer(runner, vocabulary, prompt, "bacd")
    assert not (vocabulary.classes[plain.canvas[: plain.end_at]] & LINE).any()
    assert comparable(answer(runner, vocabulary, prompt, "tccf", turn="newline")) == comparable(plain)


def test_its_cache_is_exact(runner: Runner, vocabulary: Vocabulary) -> None:
    for prompt in part(PROMPTS[:2], 2):
        cached, whole = (
            answer(runner, vocabulary, prompt, "tccf", fine_length=4, cache=cache, **LINES)
            for cache in ("prefix", "none")
        )
        assert comparable(cached) | {"positions": 0} == comparable(whole) | {"positions": 0}
        assert cached.computed_tokens < whole.computed_tokens


def test_a_mark_that_a_vocabulary_lacks_is_refused_before_anything_is_computed(vocabulary: Vocabulary) -> None:
    scheduler = Scheduler(LIMITS, vocabulary, pattern=PATTERN)
    for turn in ("think", "newlines"):
        wanted = f"turn '{turn}' needs a token that this model's vocabulary does not have: give 'newline'"
        with pytest.raises(ParamError, match=wanted) as refused:
            scheduler.add(Spec(PROMPTS[0], LENGTH, "tccf", {"turn": turn}).request(0, PATTERN))
        assert refused.value.param == "turn"
    assert scheduler.idle


def test_marks_are_tokens_of_a_vocabulary() -> None:
    words = Vocabulary(["", "a", "</think>", "</think>\n\n", "\n", ".\n \n", "\n\nb"], mask_id=0, end_ids=[])
    decoders = {turn: resolve("tccf", {"turn": turn}, 8, PATTERN) for turn in ("think", "newlines", "newline")}
    found = {turn: np.flatnonzero(words.classes & made.policy.marks).tolist() for turn, made in decoders.items()}
    assert found == {"think": [2, 3], "newlines": [3, 5, 6], "newline": [3, 4, 5]}
    for made in decoders.values():
        refuse(VocabularyFacts(made, words))
    with pytest.raises(ParamError, match="use another decoder"):
        refuse(VocabularyFacts(decoders["think"], Vocabulary(["", "a"], mask_id=0, end_ids=[])))


@pytest.mark.parametrize(
    ("params", "pattern", "param", "message"),
    [
        ({}, PLAIN, "decoder", "decoder 'tccf' is for block-causal models"),
        ({"fine_length": 3}, PATTERN, "fine_length", "must divide this model's block of 16, not 3"),
        ({"block_length": 24}, PATTERN, "block_length", "must be a multiple of this model's block of 16"),
        ({"rule": "klass"}, PATTERN, "rule", "takes no other rule"),
    ],
)
def test_parameters_that_do_not_fit_are_refused_by_name(
    params: dict[str, object], pattern: AttentionPattern, param: str, message: str
) -> None:
    with pytest.raises(ParamError, match=message) as refused:
        resolve("tccf", params, LENGTH, pattern)
    assert refused.value.param == param
