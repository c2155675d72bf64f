"""Blocks that are coarse while a model thinks and fine from there on, on a network that attends within blocks."""

from __future__ import annotations

from typing import Any

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
from asynclane.scheduler.decoding.attention_pattern import PLAIN, AttentionPattern
from asynclane.scheduler.decoding.compatibility import VocabularyFacts, refuse
from asynclane.scheduler.decoding.params import ParamError
from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.decoding.vocabulary import END, LINE, Vocabulary
from asynclane.scheduler.request import Request
from asynclane.scheduler.scheduler import Scheduler
from asynclane.scheduler.sequence import Sequence
from asynclane.server.text.tokenizer import Tokenizer

from ..support.driver import BLOCKS_MODEL, LIMITS, Ask, embedded_runner, run
from ..support.fakes import add
from ..support.scale import part

BLOCK = 16
GEOMETRY = AttentionPattern(block_size=BLOCK)
TEXT = Tokenizer(BLOCKS_MODEL)
QUESTIONS = (
    "Tom has 12 books. Then he finds 8 books at the park. How many books does Tom have now?",
    "Write a Python function that adds two numbers.",
    "What is the capital of France?",
)
PROMPTS = [TEXT.encode_chat([{"role": "user", "content": question}]) for question in QUESTIONS]
LENGTH = 90
LINES: dict[str, Any] = {"turn": "newline", "early_stop": False}


@pytest.fixture(scope="module")
def runner() -> Runner:
    return embedded_runner(model=BLOCKS_MODEL)


def answer(runner: Runner, vocabulary: Vocabulary, prompt: list[int], decoder: str, **knobs: object) -> Sequence:
    return run(runner, vocabulary, [Ask(prompt, LENGTH, decoder, knobs, ranks=2)], pattern=GEOMETRY)[0]


def facts(sequence: Sequence) -> tuple[object, ...]:
    book = sequence.scorebook
    assert book is not None
    return sequence.canvas.tolist(), sequence.steps, sequence.outcome, [x.tolist() for x in book.part(0, sequence.sent)]


def written_out(
    runner: Runner, vocabulary: Vocabulary, prompt: list[int], coarse: int, fine: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """An answer by BACD in lanes that are cut where the first line has ended, and the lane of each call, absolute."""
    x = np.array([*prompt, *[TEXT.mask_id] * LENGTH], np.int32)
    calls: list[tuple[int, int]] = []
    turned = False

    def border(position: int) -> int:
        return min((position // fine + 1) * fine, len(x))

    while (x == TEXT.mask_id).any():
        start = int((x == TEXT.mask_id).argmax())
        end = border(start) if turned else min(max((start + coarse) // BLOCK, start // BLOCK + 1) * BLOCK, len(x))
        had: list[float] = []
        while (x[start:end] == TEXT.mask_id).any():
            calls.append((start, end))
            size = -(-end // BLOCK) * BLOCK
            seen = np.pad(x, (0, size), constant_values=TEXT.mask_id)[:size]
            whole = (Span(0, size, DeviceCommitRule(0, 2.0)),)
            placement = Placement(0, seen, tuple(range(-(-size // LIMITS.page_size))))
            logits = runner.logits(StepPlan((placement,), (Row(0, 0, size, size, whole, GREEDY, 0),)))
            logits = logits[start:end].double()
            logits[:, TEXT.mask_id] = -torch.inf
            chance, best = (found.numpy() for found in logits.softmax(-1).max(-1))
            open_ = x[start:end] == TEXT.mask_id
            bar = float(np.clip(np.mean(had) if had else chance[open_].max(), 0.6, 0.9))
            commits = open_ & (chance >= bar)
            if not commits.any():
                commits[np.where(open_, chance, -1.0).argmax()] = True
            x[start:end][commits] = best[commits]
            had += chance[commits].tolist()
            marks = np.flatnonzero(vocabulary.classes[x[len(prompt) :]] & LINE)
            if len(marks) and not turned:
                turned, end = True, min(end, border(len(prompt) + int(marks[0])))
    return x[len(prompt) :].tolist(), calls


@pytest.mark.parametrize(("coarse", "fine"), [(16, 1), (16, 4), (32, 8), (48, 16)])
@pytest.mark.parametrize("prompt", PROMPTS[:2], ids=["sum", "code"])
def test_answers_are_those_of_the_method_written_out(
    coarse: int, fine: int, prompt: list[int], runner: Runner, vocabulary: Vocabulary
) -> None:
    tokens, calls = written_out(runner, vocabulary, prompt, coarse, fine)
    ours = answer(runner, vocabulary, prompt, "tccf", block_length=coarse, fine_length=fine, **LINES)
    assert ours.canvas.tolist() == tokens
    assert ours.steps == len(calls)


@pytest.mark.parametrize("fine", [1, 2, 4, 8])
def test_blocks_are_coarse_before_the_turn_and_fine_behind_it(
    fine: int, runner: Runner, vocabulary: Vocabulary
) -> None:
    decoder = resolve("tccf", {"fine_length": fine, **LINES}, LENGTH, GEOMETRY)
    scheduler = Scheduler(LIMITS, vocabulary, pattern=GEOMETRY)
    prompt = PROMPTS[0]
    sequence = add(scheduler, Request(0, np.array(prompt, np.int32), LENGTH, decoder))
    coarse, fines, turned = 0, 0, False
    while (plan := scheduler.plan()) is not None:
        (lane,) = sequence.tree.live
        first, behind, last = len(prompt) + lane.start, len(prompt) + lane.end, len(prompt) + LENGTH
        if not turned:
            assert behind == min(-(-(first + 1) // BLOCK) * BLOCK, last)
            coarse += 1
        elif lane.steps == 0:
            assert behind == min(-(-(first + 1) // fine) * fine, last)
            fines += 1
        scheduler.commit(runner.execute(plan))
        turned = turned or bool((vocabulary.classes[sequence.canvas] & LINE).any())
    assert min(coarse, fines) > 0


def test_fine_blocks_as_long_as_coarse_ones_are_bacd(runner: Runner, vocabulary: Vocabulary) -> None:
    for prompt in PROMPTS:
        same = answer(runner, vocabulary, prompt, "tccf", fine_length=BLOCK, **LINES)
        for decoder, rule in (("bacd", {}), ("fast-dllm", {"rule": "bacd"})):
            assert facts(same) == facts(answer(runner, vocabulary, prompt, decoder, early_stop=False, **rule))


def test_an_answer_without_the_mark_is_bacd(vocabulary: Vocabulary, runner: Runner) -> None:
    prompt = PROMPTS[2]
    plain = answer(runner, vocabulary, prompt, "bacd")
    assert not (vocabulary.classes[plain.canvas[: plain.end_at]] & LINE).any()
    assert facts(answer(runner, vocabulary, prompt, "tccf", turn="newline")) == facts(plain)


def test_its_cache_is_exact(runner: Runner, vocabulary: Vocabulary) -> None:
    for prompt in PROMPTS:
        cached, whole = (
            answer(runner, vocabulary, prompt, "tccf", fine_length=4, cache=cache, **LINES)
            for cache in ("prefix", "none")
        )
        assert facts(cached) == facts(whole)
        assert cached.computed_tokens < whole.computed_tokens


def test_an_answer_is_the_same_alone_and_in_a_crowd(runner: Runner, vocabulary: Vocabulary) -> None:
    asks = [
        Ask(
            prompt=PROMPTS[n % 3],
            max_tokens=(1, 40, LENGTH, 33)[n % 4],
            decoder="bacd" if n % 6 == 5 else "tccf",
            knobs={} if n % 6 == 5 else {**LINES, "fine_length": 2 ** (n % 5), "block_length": 16 + n % 2 * 16},
            sampling=Sampling(1.0, seed=n) if n % 3 == 1 else GREEDY,
            ranks=2,
        )
        for n in range(24)
    ]
    crowd = run(runner, vocabulary, asks, pattern=GEOMETRY)
    for ask, sequence in part(zip(asks, crowd, strict=True), 5):
        (alone,) = run(runner, vocabulary, [ask], pattern=GEOMETRY)
        assert facts(alone) == facts(sequence), ask
        text = sequence.canvas[: sequence.sent]
        assert not ((text == vocabulary.mask_id) | ((vocabulary.classes[text] & END) != 0)).any()


def test_a_mark_that_a_vocabulary_lacks_is_refused_before_anything_is_computed(vocabulary: Vocabulary) -> None:
    scheduler = Scheduler(LIMITS, vocabulary, pattern=GEOMETRY)
    for turn in ("think", "newlines"):
        decoder = resolve("tccf", {"turn": turn}, LENGTH, GEOMETRY)
        wanted = f"turn '{turn}' needs a token that this model's vocabulary does not have: give 'newline'"
        with pytest.raises(ParamError, match=wanted) as refused:
            scheduler.add(Request(0, np.array(PROMPTS[0], np.int32), LENGTH, decoder))
        assert refused.value.param == "turn"
    assert scheduler.idle


def test_marks_are_tokens_of_a_vocabulary() -> None:
    words = Vocabulary(["", "a", "</think>", "</think>\n\n", "\n", ".\n \n", "\n\nb"], mask_id=0, end_ids=[])
    decoders = {turn: resolve("tccf", {"turn": turn}, 8, GEOMETRY) for turn in ("think", "newlines", "newline")}
    found = {turn: np.flatnonzero(words.classes & made.policy.marks).tolist() for turn, made in decoders.items()}
    assert found == {"think": [2, 3], "newlines": [3, 5, 6], "newline": [3, 4, 5]}
    for made in decoders.values():
        refuse(VocabularyFacts(made, words))
    with pytest.raises(ParamError, match="use another decoder"):
        refuse(VocabularyFacts(decoders["think"], Vocabulary(["", "a"], mask_id=0, end_ids=[])))


@pytest.mark.parametrize(
    ("knobs", "pattern", "param", "message"),
    [
        ({}, PLAIN, "decoder", "decoder 'tccf' is for block-causal models"),
        ({}, AttentionPattern(logit_shift=1), "decoder", "decoder 'tccf' is for block-causal models"),
        ({"fine_length": 3}, GEOMETRY, "fine_length", "must divide this model's block of 16, not 3"),
        ({"fine_length": 32, "block_length": 32}, GEOMETRY, "fine_length", "must divide this model's block of 16"),
        ({"block_length": 24}, GEOMETRY, "block_length", "must be a multiple of this model's block of 16"),
        ({"turn": "word"}, GEOMETRY, "turn", "must be one of 'think', 'newlines', 'newline'"),
        ({"cache": "dual"}, GEOMETRY, "cache", "use 'prefix'"),
        ({"rule": "klass"}, GEOMETRY, "rule", "takes no other rule"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    knobs: dict[str, object], pattern: AttentionPattern, param: str, message: str
) -> None:
    with pytest.raises(ParamError, match=message) as refused:
        resolve("tccf", knobs, LENGTH, pattern)
    assert refused.value.param == param
