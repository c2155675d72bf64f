"""A block-causal network: caches are exact, prefixes are shared between requests, and neither changes an answer."""

from __future__ import annotations

from dataclasses import replace
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
from asynclane.scheduler.decoding.attention_pattern import AttentionPattern
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.scheduler.scheduler import Scheduler
from asynclane.scheduler.sequence import Sequence
from asynclane.scheduler.step_cost import Halving, StepCost
from asynclane.server.text.tokenizer import Tokenizer

from ..support.driver import BLOCKS_MODEL, LIMITS, Ask, embedded_runner, run, serve
from ..support.scale import part
from .test_invariance import QUESTIONS

BLOCK = 16
GEOMETRY = AttentionPattern(block_size=BLOCK)
SHARING = replace(LIMITS, prefix_sharing=True)
TEXT = Tokenizer(BLOCKS_MODEL)
PROMPTS = [TEXT.encode_chat([{"role": "user", "content": question}]) for question in QUESTIONS]
LONG = (PROMPTS[3] * 20)[:400]

DECODERS: list[tuple[str, dict[str, Any]]] = [
    ("fast-dllm", {}),
    ("fast-dllm", {"factor": 1.0, "block_length": 32}),
    ("freedave", {"block_length": 32, "draft_steps": 2}),
    ("llada", {"steps": 10}),
    ("asynclane", {"cache": "prefix"}),
    ("asynclane", {"threshold": 0.5, "draft_threshold": 0.8, "max_lanes": 8}),
    ("asynclane", {"reuse": False, "siblings": "coupled"}),
]


@pytest.fixture(scope="module")
def runner() -> Runner:
    return embedded_runner(model=BLOCKS_MODEL)


def answers(runner: Runner, vocabulary: Vocabulary, asks: list[Ask], **limits: Any) -> list[Sequence]:
    return run(runner, vocabulary, asks, replace(SHARING, **limits), pattern=GEOMETRY)


def facts(sequence: Sequence) -> tuple[object, ...]:
    """What it holds, in how many calls, and how likely each token was, to the bit."""
    book = sequence.scorebook
    assert book is not None
    return sequence.canvas.tolist(), sequence.steps, [x.tolist() for x in book.part(0, sequence.sent)]


@pytest.mark.parametrize("decoder", DECODERS, ids=str)
def test_answers_are_those_of_no_cache_to_the_bit(
    decoder: tuple[str, dict[str, Any]], runner: Runner, vocabulary: Vocabulary
) -> None:
    name, knobs = decoder
    plain = {knob: value for knob, value in knobs.items() if knob != "reuse"}
    for prompt in part((LONG[:60] + PROMPTS[1], PROMPTS[4]), 2):
        cached, computed = (
            answers(runner, vocabulary, [Ask(prompt, 70, name, chosen, ranks=2)])[0]
            for chosen in (knobs, {**plain, "cache": "none"})
        )
        first_pass = knobs.get("reuse") is False
        assert facts(cached)[0] == facts(computed)[0]
        if not first_pass:  # a call more, which shifts the numbers of the steps
            assert facts(cached) == facts(computed)
        assert cached.computed_tokens < computed.computed_tokens


def test_fast_dllm_is_the_published_sampler_of_block_diffusion(runner: Runner, vocabulary: Vocabulary) -> None:
    """Blocks in order; in each call all that are sure enough commit, or else the best; the prompt's tail shares the
    first block (SDAR's `block_diffusion_generate` with `low_confidence_dynamic`)."""
    for prompt in PROMPTS[:2]:
        length = 3 * BLOCK - len(prompt) % BLOCK
        tokens = np.array([*prompt, *[TEXT.mask_id] * length], np.int32)
        calls = 0
        for start in range(len(prompt) // BLOCK * BLOCK, len(tokens), BLOCK):
            block = tokens[start : start + BLOCK]
            while (block == TEXT.mask_id).any():
                end = start + BLOCK
                whole = Span(0, end, DeviceCommitRule(0, 2.0))
                pages = tuple(range(-(-end // LIMITS.page_size)))
                row = Row(0, 0, end, end, (whole,), GREEDY, 0)
                logits = runner.logits(StepPlan((Placement(0, tokens[:end], pages),), (row,)))[start:].double()
                logits[:, TEXT.mask_id] = -torch.inf
                chance, best = logits.softmax(-1).max(-1)
                open_ = torch.from_numpy(block == TEXT.mask_id)
                commits = open_ & (chance >= 0.85)
                if not commits.any():
                    commits[torch.where(open_, chance, -1.0).argmax()] = True
                block[commits.numpy()] = best[commits].numpy()
                calls += 1
        ask = Ask(prompt, length, "fast-dllm", {"threshold": 0.85, "early_stop": False})
        (ours,) = answers(runner, vocabulary, [ask])
        assert ours.canvas.tolist() == tokens[len(prompt) :].tolist()
        assert ours.steps == calls


def crowd() -> list[Ask]:
    """Requests that differ in all but a beginning that many share."""
    asks = []
    for number, question in enumerate(PROMPTS[:6]):
        prompt = LONG[: 48 * (number % 3 + 1)] + question
        sampling = Sampling(0.8, seed=number) if number % 2 else GREEDY
        asks.append(Ask(prompt, 32, *DECODERS[number % len(DECODERS)], sampling, ranks=2))
    return asks


def test_answers_with_and_without_sharing_alone_and_in_a_crowd_are_equal_to_the_bit(
    runner: Runner, vocabulary: Vocabulary
) -> None:
    asks = crowd()
    shared = answers(runner, vocabulary, asks)
    apart = answers(runner, vocabulary, asks, prefix_sharing=False)
    squeezed = answers(runner, vocabulary, asks, slots=3, pages=64, step_tokens=1024)
    assert sum(sequence.cached_tokens for sequence in shared) >= 144
    assert sum(sequence.cached_tokens for sequence in apart) == 0
    assert [facts(s) for s in shared] == [facts(s) for s in apart] == [facts(s) for s in squeezed]
    for ask, sequence in zip(asks[::4], shared[::4], strict=True):
        assert facts(answers(runner, vocabulary, [ask])[0]) == facts(sequence)
    always = Halving(StepCost([1, 1000], [0.001, 1.0]))
    flying = run(runner, vocabulary, asks, SHARING, always, GEOMETRY)
    assert [facts(s) for s in flying] == [facts(s) for s in shared]


def test_a_second_request_computes_none_of_a_prefix_of_400_tokens(runner: Runner, vocabulary: Vocabulary) -> None:
    ask = Ask(LONG + PROMPTS[0], 32, "fast-dllm", ranks=2)
    scheduler = Scheduler(SHARING, vocabulary, pattern=GEOMETRY)
    (first,) = serve(scheduler, runner, [replace(ask, prompt=LONG + PROMPTS[1])])
    (second,) = serve(scheduler, runner, [ask], first=1)
    (alone,) = answers(runner, vocabulary, [ask])
    assert (first.cached_tokens, second.cached_tokens, alone.cached_tokens) == (0, 400, 0)
    assert alone.computed_tokens - second.computed_tokens == 400
    assert facts(second) == facts(alone)


def test_the_next_turn_of_a_conversation_starts_behind_the_last_answer(runner: Runner, vocabulary: Vocabulary) -> None:
    scheduler = Scheduler(SHARING, vocabulary, pattern=GEOMETRY)
    (first,) = serve(scheduler, runner, [Ask(LONG, 100, "fast-dllm", {"early_stop": False}, ranks=2)])
    turn = Ask([*LONG, *first.canvas.tolist(), *PROMPTS[2]], 32, "fast-dllm", ranks=2)
    (second,) = serve(scheduler, runner, [turn], first=1)
    assert second.cached_tokens == 400 + 100 // BLOCK * BLOCK - BLOCK * (100 % BLOCK == 0)
    assert facts(second) == facts(answers(runner, vocabulary, [turn])[0])


def test_choices_of_one_prompt_compute_it_once_with_and_without_sharing(runner: Runner, vocabulary: Vocabulary) -> None:
    asks = [
        Ask(LONG[:160], 16, "fast-dllm", {}, Sampling(1.0, seed=seed), ranks=2, share_group="one") for seed in range(3)
    ]
    for sharing in (True, False):
        together = answers(runner, vocabulary, asks, prefix_sharing=sharing)
        assert [sequence.cached_tokens for sequence in together] == [0, 160, 160]
        for ask, sequence in zip(asks, together, strict=True):
            assert facts(answers(runner, vocabulary, [ask])[0]) == facts(sequence)
