"""Decoders that take tokens back or change them: nobody is told of a token before it is final, in whatever company."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import Sampling
from asynclane.scheduler.decoding.attention_pattern import AttentionPattern
from asynclane.scheduler.decoding.params import ParamError
from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.decoding.vocabulary import END as END_CLASS
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.scheduler.request import Outcome, Request
from asynclane.scheduler.scheduler import Scheduler
from asynclane.server.structured.grammar import Wanted

from ..support.driver import LIMITS, Ask, run
from ..support.fakes import END, MASK, BlockCausalExecutor, ScriptedExecutor, add, random_executor, random_proposals
from ..support.fakes import vocabulary as words
from ..support.scale import part
from .test_golden import GOLDEN
from .test_structured import constraints

PROMPTS = [prompt["prompt_ids"] for prompt in GOLDEN["prompts"]]
LENGTH = 32
DECODERS: list[tuple[str, dict[str, Any]]] = [
    ("leap", {"block_length": 16}),
    ("llada2", {"block_length": 16, "edit_threshold": 0.0, "threshold": 0.5}),
    ("saber", {"block_length": 16, "precision": "double"}),
    ("wino", {"block_length": 16}),
]
REVISING = [decoder for decoder in DECODERS if decoder[0] != "leap"]


def stream(
    decoder: str, knobs: dict[str, Any], runner: Any, words: Vocabulary, prompt: list[int], length: int
) -> tuple[list[list[int]], list[list[int]], Outcome | None]:
    """What each step hands out, what the canvas holds behind it, and how it ends."""
    scheduler = Scheduler(LIMITS, words)
    tokens = np.array(prompt, np.int32)
    sequence = add(scheduler, Request(0, tokens, length, resolve(decoder, knobs, length)))
    handed: list[list[int]] = []
    canvases: list[list[int]] = []
    while (plan := scheduler.plan()) is not None:
        for update in scheduler.commit(runner.execute(plan)):
            handed.append(update.tokens.tolist())
            canvases.append(sequence.canvas.tolist())
    return handed, canvases, sequence.outcome


@pytest.mark.parametrize(("decoder", "knobs"), DECODERS, ids=lambda value: value if isinstance(value, str) else "")
def test_streamed_tokens_are_those_of_the_answer(
    decoder: str, knobs: dict[str, Any], runner: Runner, vocabulary: Vocabulary
) -> None:
    handed, canvases, _ = stream(decoder, knobs | {"early_stop": False}, runner, vocabulary, PROMPTS[2], LENGTH)
    told = [token for tokens in handed for token in tokens]
    ends = np.flatnonzero(vocabulary.classes[canvases[-1]] & END_CLASS)
    assert told == canvases[-1][: ends[0] if len(ends) else LENGTH]


def changes(canvases: list[list[int]], mask_id: int) -> int:
    """How often a token that stood there was gone or another one in the next step."""
    pairs = itertools.pairwise(canvases)
    return sum(a != mask_id and a != b for before, after in pairs for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(("decoder", "knobs"), REVISING, ids=lambda value: value if isinstance(value, str) else "")
def test_tokens_are_taken_back(decoder: str, knobs: dict[str, Any], runner: Runner, vocabulary: Vocabulary) -> None:
    def taken_back(prompt: list[int]) -> int:
        _, canvases, _ = stream(decoder, knobs | {"early_stop": False}, runner, vocabulary, prompt, LENGTH)
        return changes(canvases, vocabulary.mask_id)

    assert any(map(taken_back, PROMPTS))


def test_an_end_that_is_taken_back_ends_nothing() -> None:
    """It was proposed at once, a word instead of it later."""
    steps: list[int] = []

    def propose(slot: int, position: int) -> tuple[int, float]:
        if position == 1:
            steps.append(position)
        early = len(steps) < 3
        return (END, 0.9) if early and position == 3 else (6, 0.9 if position < 5 or not early else 0.1)

    knobs = {"block_length": 8, "threshold": 0.8}
    handed, canvases, outcome = stream("llada2", knobs, ScriptedExecutor(propose), words(), [2], 16)
    assert canvases[0][2] == END
    assert [token for tokens in handed for token in tokens] == [6] * 16
    assert outcome is Outcome.LENGTH


def test_an_answer_ends_with_the_block_that_holds_its_end() -> None:
    def propose(slot: int, position: int) -> tuple[int, float]:
        return (END if position == 6 else 6), 0.9

    handed, canvases, outcome = stream("llada2", {"block_length": 8}, ScriptedExecutor(propose), words(), [2], 32)
    assert handed == [[], [6] * 5], "a call more than it takes to fill the block: the one that changes nothing"
    assert outcome is Outcome.STOP
    assert canvases[-1][8:] == [MASK] * 24


def test_an_edited_block_is_given_so_many_calls_at_most() -> None:
    """The network never makes up its mind."""
    calls: list[int] = []

    def propose(slot: int, position: int) -> tuple[int, float]:
        calls.append(position)
        return 6 + calls.count(position) % 2, 0.9

    knobs = {"block_length": 8, "edit_steps": 5}
    handed, _, _ = stream("llada2", knobs, ScriptedExecutor(propose), words(), [2], 8)
    assert len(handed) == 1 + 5
    assert len(handed[-1]) == 8


def test_without_edits_it_is_fast_dllm(runner: Runner, vocabulary: Vocabulary) -> None:
    edited, plain = (
        run(runner, vocabulary, [Ask(prompt, LENGTH, decoder, knobs) for prompt in PROMPTS[:3]])
        for decoder, knobs in (("llada2", {"threshold": 0.7, "edit_steps": 0}), ("fast-dllm", {"threshold": 0.7}))
    )
    assert [(s.canvas.tolist(), s.steps) for s in edited] == [(s.canvas.tolist(), s.steps) for s in plain]


def test_an_answer_is_the_same_alone_and_in_a_crowd(runner: Runner, vocabulary: Vocabulary) -> None:
    others = [("asynclane", {}), ("fast-dllm", {}), ("llada", {"steps": 8}), ("localleap", {})]
    mixed = [*DECODERS, *others]
    crowd = [
        Ask(
            PROMPTS[number % 12],
            LENGTH,
            *mixed[number % 8],
            sampling=Sampling(temperature=float(number % 3 == 2), seed=number),
        )
        for number in range(32)
    ]
    together = run(runner, vocabulary, crowd)
    for number in part((0, 1, 2, 3, 8, 9, 10, 11), 3):
        (alone,) = run(runner, vocabulary, [crowd[number]])
        assert alone.canvas.tolist() == together[number].canvas.tolist(), crowd[number].decoder
        assert alone.steps == together[number].steps


@pytest.mark.parametrize(("decoder", "knobs"), DECODERS, ids=lambda value: value if isinstance(value, str) else "")
def test_the_shortest_requests_and_all_that_may_be_asked(
    decoder: str, knobs: dict[str, Any], runner: Runner, vocabulary: Vocabulary
) -> None:
    asks = [
        Ask(PROMPTS[0], 1, decoder, knobs),
        Ask([7], 3, decoder, knobs),
        Ask(PROMPTS[1], 20, decoder, knobs, sampling=Sampling(temperature=1.0, seed=5), ranks=3),
        Ask(PROMPTS[2], 20, decoder, knobs, suffix=[204, 12]),
        Ask(PROMPTS[2], 20, decoder, knobs | {"cache": "dual"}, ranks=0),
        Ask(PROMPTS[2], 20, decoder, knobs | {"cache": "prefix"}),
    ]
    for sequence in run(runner, vocabulary, asks):
        shown = sequence.canvas[: min(sequence.frontier, sequence.end_at)]
        assert vocabulary.mask_id not in shown
        assert sequence.outcome in (Outcome.STOP, Outcome.LENGTH)
        if sequence.scorebook is not None:
            assert (sequence.scorebook.part(0, len(shown)).logprobs < 0).all()


@pytest.mark.parametrize(("decoder", "knobs"), [("llada2", {"edit_threshold": 0.5}), ("saber", {})])
def test_networks_of_other_geometries_are_served_by_rules_that_need_no_shadows(
    decoder: str, knobs: dict[str, Any]
) -> None:
    """Within blocks a row's keys are always those of the tokens before it as they are now."""
    asks = [Ask([6] * (number + 1), 30, decoder, knobs | {"early_stop": False}) for number in range(4)]
    blocks = BlockCausalExecutor(random_proposals(3), 8, LIMITS.page_size)
    for executor, pattern in (
        (blocks, AttentionPattern(block_size=8)),
        (random_executor(3, shift=1), AttentionPattern(logit_shift=1)),
    ):
        for sequence in run(executor, words(), asks, pattern=pattern):
            assert MASK not in sequence.canvas


@pytest.mark.parametrize("rule", ["editing", "saber", "wino", "leap"])
def test_lanes_that_build_upon_each_other_are_refused(rule: str) -> None:
    with pytest.raises(ParamError, match=f"{rule!r}.*'asynclane'") as refused:
        resolve("asynclane", {"rule": rule}, LENGTH)
    assert refused.value.param == "rule"


@pytest.mark.parametrize("decoder", ["llada2", "saber", "wino"])
def test_a_grammar_is_refused(decoder: str, runner: Runner, vocabulary: Vocabulary) -> None:
    """It leads an answer from left to right, on tokens that stay."""
    held = Ask(PROMPTS[0], 16, decoder, constraint=constraints(Wanted("response_format", regex="a+"))())
    with pytest.raises(ParamError, match=f"response_format is not for decoder {decoder!r}") as refused:
        run(runner, vocabulary, [held])
    assert refused.value.param == "response_format"


def test_shadows_do_not_keep_an_answer_from_its_grammar(runner: Runner, vocabulary: Vocabulary) -> None:
    held = Ask(PROMPTS[0], 16, "leap", constraint=constraints(Wanted("guided_regex", regex="a{3}"))())
    (answer,) = run(runner, vocabulary, [held])
    assert answer.outcome is Outcome.STOP


@pytest.mark.parametrize("pattern", [AttentionPattern(logit_shift=1), AttentionPattern(block_size=16)])
@pytest.mark.parametrize("decoder", ["wino", "leap"])
def test_shadows_are_refused_where_the_network_cannot_have_them(decoder: str, pattern: AttentionPattern) -> None:
    with pytest.raises(ParamError, match=f"{decoder!r}.*this model"):
        resolve(decoder, {"block_length": 16}, LENGTH, pattern)


def test_shadows_need_room_behind_the_canvas() -> None:
    scheduler = Scheduler(LIMITS, words())
    request = Request(0, np.full(900, 6, np.int32), 64, resolve("wino", {}, 64))
    with pytest.raises(ParamError, match="'wino' needs room for 64 replica positions after 964 tokens, of 1024 in all"):
        scheduler.add(request)
