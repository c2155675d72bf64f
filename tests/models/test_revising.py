"""Decoders that take tokens back or change them: no token is handed out before it is final.

tests/invariants/test_streaming.py compares what they stream with the answer.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from asynclane.models.exec.runner import Runner
from asynclane.scheduler import (
    PLAIN,
    AttentionPattern,
    Executor,
    Outcome,
    ParamError,
    Request,
    Sampling,
    Scheduler,
    Vocabulary,
    resolve,
)

from ..support.driver import LIMITS, Spec, run
from ..support.fakes import END, MASK, BlockCausalExecutor, ScriptedExecutor, add, random_executor, random_proposals
from ..support.fakes import vocabulary as words
from ..support.golden import PROMPTS, WHOLE
from ..support.grammars import regex
from ..support.scale import part

LENGTH = 32
REVISING: list[tuple[str, dict[str, Any]]] = [
    ("llada2", {"block_length": 16, "edit_threshold": 0.0, "threshold": 0.5}),
    ("saber", {"block_length": 16}),
    ("t2m", {"block_length": 16, "threshold": 0.3, "remask_threshold": 0.6}),
    ("wino", {"block_length": 16}),
]
Steps = tuple[list[list[int]], list[list[int]], Outcome | None]


def stream(spec: Spec, executor: Executor, words: Vocabulary) -> Steps:
    """The tokens that each step hands out, the canvas after it, and the outcome."""
    scheduler = Scheduler(LIMITS, words)
    sequence = add(scheduler, spec.request(0, scheduler.pattern))
    handed: list[list[int]] = []
    canvases: list[list[int]] = []
    while (plan := scheduler.plan()) is not None:
        updates = scheduler.commit(executor.execute(plan))  # none of a step that brought nothing
        handed.append([token for update in updates for token in update.tokens.tolist()])
        canvases.append(sequence.canvas.tolist())
    return handed, canvases, sequence.outcome


@pytest.mark.parametrize(("decoder", "params"), part(REVISING, 2), ids=str)
def test_tokens_are_taken_back(decoder: str, params: dict[str, Any], runner: Runner, vocabulary: Vocabulary) -> None:
    """A token that stood there is gone, or another one, in the next step."""

    def changes(prompt: list[int]) -> int:
        _, canvases, _ = stream(Spec(prompt, LENGTH, decoder, params | WHOLE), runner, vocabulary)
        pairs = itertools.pairwise(canvases)
        mask = vocabulary.mask_id
        return sum(a not in (mask, b) for before, after in pairs for a, b in zip(before, after, strict=True))

    assert any(map(changes, PROMPTS))


def test_an_end_that_is_taken_back_ends_nothing() -> None:
    """It was proposed at first, and a word at its place later."""
    steps: list[int] = []

    def propose(slot: int, position: int) -> tuple[int, float]:
        if position == 1:
            steps.append(position)
        early = len(steps) < 3
        return (END, 0.9) if early and position == 3 else (6, 0.9 if position < 5 or not early else 0.1)

    spec = Spec([2], 16, "llada2", {"block_length": 8, "threshold": 0.8})
    handed, canvases, outcome = stream(spec, ScriptedExecutor(propose), words())
    assert canvases[0][2] == END
    assert [token for tokens in handed for token in tokens] == [6] * 16
    assert outcome is Outcome.LENGTH


def test_an_answer_ends_with_the_block_that_has_its_end() -> None:
    executor = ScriptedExecutor(lambda slot, position: (END if position == 6 else 6, 0.9))
    handed, canvases, outcome = stream(Spec([2], 32, "llada2", {"block_length": 8}), executor, words())
    assert handed == [[], [6] * 5], "one forward more than it takes to fill the block: the one that changes nothing"
    assert outcome is Outcome.STOP
    assert canvases[-1][8:] == [MASK] * 24


def test_an_edited_block_has_a_limited_number_of_forwards() -> None:
    """The network never settles on a token."""
    forwards: list[int] = []

    def propose(slot: int, position: int) -> tuple[int, float]:
        forwards.append(position)
        return 6 + forwards.count(position) % 2, 0.9

    spec = Spec([2], 8, "llada2", {"block_length": 8, "edit_steps": 5})
    handed, _, _ = stream(spec, ScriptedExecutor(propose), words())
    assert len(handed) == 1 + 5
    assert len(handed[-1]) == 8


@pytest.mark.parametrize("decoder", part(["leap", "llada2", "saber", "t2m", "wino"], 2))
def test_log_probabilities_are_those_of_a_choice(decoder: str, runner: Runner, vocabulary: Vocabulary) -> None:
    spec = Spec(PROMPTS[1], 20, decoder, {"block_length": 16}, Sampling(1.0, seed=5), ranks=3)
    (answer,) = run(runner, vocabulary, [spec])
    assert answer.scores is not None
    assert (answer.scores.logprobs < 0).all()


@pytest.mark.parametrize(("decoder", "params"), [("llada2", {"edit_threshold": 0.5}), ("saber", {}), ("t2m", {})])
def test_networks_of_other_attention_patterns_are_served_by_rules_without_replicas(
    decoder: str, params: dict[str, Any]
) -> None:
    """Within blocks a row's keys are always those of the tokens before it as they are now."""
    specs = [Spec([6] * (number + 1), 30, decoder, params | WHOLE) for number in range(4)]
    blocks = BlockCausalExecutor(random_proposals(3), 8, LIMITS.page_size)
    for executor, pattern in (
        (blocks, AttentionPattern(block_size=8)),
        (random_executor(3, shift=1), AttentionPattern(logit_shift=1)),
    ):
        for answer in run(executor, words(), specs, pattern=pattern):
            assert MASK not in answer.canvas


@pytest.mark.parametrize(
    ("decoder", "params", "pattern", "message"),
    [
        *[
            ("asynclane", {"rule": rule}, PLAIN, f"{rule!r}.*'asynclane'")
            for rule in ("editing", "saber", "t2m", "wino", "leap")
        ],
        *[(name, {}, AttentionPattern(logit_shift=1), f"{name!r}.*this model") for name in ("wino", "leap")],
        *[(name, {}, AttentionPattern(block_size=16), f"{name!r}.*this model") for name in ("wino", "leap")],
    ],
)
def test_lanes_that_build_upon_each_other_and_networks_without_replicas_are_refused(
    decoder: str, params: dict[str, Any], pattern: AttentionPattern, message: str
) -> None:
    with pytest.raises(ParamError, match=message) as refused:
        resolve(decoder, params, LENGTH, pattern)
    assert not params or refused.value.param == "rule"


def test_a_grammar_is_refused(runner: Runner, vocabulary: Vocabulary) -> None:
    """It commits from left to right, on tokens that stay."""
    for decoder in ("llada2", "saber", "t2m", "wino"):
        with pytest.raises(ParamError, match=f"guided_regex is not for decoder {decoder!r}") as refused:
            run(runner, vocabulary, [Spec(PROMPTS[0], 16, decoder, constraint=regex("a+"))])
        assert refused.value.param == "guided_regex"


def test_replicas_need_room_after_the_canvas() -> None:
    request = Request(0, np.full(900, 6, np.int32), 64, resolve("wino", {}, 64))
    with pytest.raises(ParamError, match="'wino' needs room for 64 replica positions after 964 tokens, of 1024 in all"):
        Scheduler(LIMITS, words()).add(request)
