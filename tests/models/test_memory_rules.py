"""Rules that remember what calls before found: each is another one at its limits, and serves whatever is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest
from jsonschema import Draft202012Validator

from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import Sampling
from asynclane.scheduler.decoding.attention_pattern import AttentionPattern
from asynclane.scheduler.decoding.vocabulary import END, Vocabulary
from asynclane.scheduler.request import Outcome
from asynclane.scheduler.sequence import Sequence

from ..support.driver import BLOCKS_MODEL, Ask, embedded_runner, run
from ..support.fakes import vocabulary as small_vocabulary
from ..support.scale import part
from ..support.small_network import small_runner
from .test_golden import GOLDEN
from .test_structured import ORDER, PROMPT, said, schema

LENGTH = 32
PROMPTS = [GOLDEN["prompts"][number]["prompt_ids"] for number in (0, 2, 4, 5)]
STORY = PROMPTS[2]
TWICE = {"early_stop": False, "block_length": 16, "steps": 8}
WHOLE = {"early_stop": False, "cache": "none"}
NO_GAP = {"early_gap": 100.0, "mid_gap": 100.0, "late_gap": 100.0}

RULES: tuple[tuple[str, Mapping[str, object]], ...] = (
    ("ahd", {"history": 1, "drift": 1.0}),
    ("ass", {}),
    ("ccd", {"warmup": 1}),
    ("credit", {"threshold": 0.7}),
    ("eoser", {"steps": 16}),
    ("klass", {"history": 1, "kl_threshold": 0.2}),
    ("localleap", {"reach": 2}),
    ("prophet", {"threshold": 0.9}),
)


def kinds(length: int = LENGTH, cache: str = "dual") -> Iterator[tuple[str, dict[str, object]]]:
    """Every rule as the method of its name, and with lanes."""
    for rule, knobs in RULES:
        yield rule, {"cache": cache, **knobs}
        yield "asynclane", {"rule": rule, "lookahead": min(32, length), **knobs}
    yield "fast-dllm", {"rule": "klass", "watch": "canvas", "cache": "prefix"}


def answers(
    runner: Runner, vocabulary: Vocabulary, decoder: str, knobs: Mapping[str, object]
) -> list[tuple[list[int], int]]:
    asks = [Ask(prompt, LENGTH, decoder, knobs) for prompt in PROMPTS]
    return [(sequence.canvas.tolist(), sequence.steps) for sequence in run(runner, vocabulary, asks)]


@pytest.mark.parametrize(
    ("rule", "knobs", "other", "its"),
    [
        ("klass", {"threshold": 1.0, **TWICE}, "llada", TWICE),
        ("klass", {"threshold": 1.0, "watch": "lanes", **TWICE}, "llada", TWICE),
        ("eoser", {"end_weight": 1.0, **TWICE}, "llada", TWICE),
        ("prophet", {**NO_GAP, **TWICE}, "llada", TWICE),
        ("prophet", {"threshold": 0.9, **NO_GAP}, "fast-dllm", {}),
        ("ahd", {"drift": 0.0}, "fast-dllm", {}),
        ("credit", {"credit_alpha": 0.0, "cache": "prefix"}, "fast-dllm", {"cache": "prefix"}),
    ],
    ids=str,
)
def test_a_rule_at_its_limit_is_the_one_it_extends(
    rule: str,
    knobs: dict[str, object],
    other: str,
    its: dict[str, object],
    runner: Runner,
    vocabulary: Vocabulary,
) -> None:
    knobs = {"cache": "dual", **knobs}
    assert answers(runner, vocabulary, rule, knobs) == answers(runner, vocabulary, other, {"cache": "dual", **its})


def test_what_a_rule_adds_saves_calls(runner: Runner, vocabulary: Vocabulary) -> None:
    def calls(decoder: str, prompt: list[int] = STORY, **knobs: object) -> int:
        (answer,) = run(runner, vocabulary, [Ask(prompt, 64, decoder, {"cache": "dual", **knobs})])
        return answer.steps

    assert calls("credit") < calls("fast-dllm")
    assert calls("localleap") < calls("fast-dllm")
    assert calls("ahd", history=1, drift=1.0, block_length=8) < calls("ahd", drift=0.0, block_length=8)
    assert calls("ccd", steps=32) < calls("ccd", steps=32, warmup=4096)
    assert calls("klass", steps=32) < calls("llada", steps=32)
    assert calls("prophet", PROMPTS[3], steps=32) < calls("llada", PROMPTS[3], steps=32)


def test_ass_takes_as_many_calls_as_a_block_has_doublings(runner: Runner, vocabulary: Vocabulary) -> None:
    assert {steps for _, steps in answers(runner, vocabulary, "ass", WHOLE)} == {5}
    fives = answers(runner, vocabulary, "fast-dllm", {"rule": "ass", "early_stop": False, "block_length": 16})
    assert {steps for _, steps in fives} == {8}


def test_prophet_leaves_at_once_if_nothing_is_asked_of_the_answer(runner: Runner, vocabulary: Vocabulary) -> None:
    knobs = {"early_gap": 0.0, **WHOLE}
    assert {steps for _, steps in answers(runner, vocabulary, "prophet", knobs)} == {1}
    assert {steps for _, steps in answers(runner, vocabulary, "prophet", {"answer_at": 20, **knobs})} == {1}


def mixed(constrained: bool) -> list[Ask]:
    """Every rule, hot or not, with scores or not, and answers of a grammar."""
    asks = []
    for number, (decoder, knobs) in enumerate(kinds()):
        hot = Sampling(1.0, 0.95, seed=number) if number % 3 == 1 else Sampling()
        ranks = number % 4 or None
        held = schema(ORDER)() if constrained and decoder != "ass" else None
        prompt = PROMPT if constrained else PROMPTS[number % 4]
        asks.append(Ask(prompt, 48 if constrained else LENGTH, decoder, knobs, hot, ranks=ranks, constraint=held))
    return asks


def facts(sequence: Sequence) -> tuple[object, ...]:
    book = sequence.scorebook
    scores = () if book is None else tuple(part.tolist() for part in book.part(0, sequence.sent))
    return sequence.canvas.tolist(), sequence.sent, sequence.steps, sequence.outcome, scores


def assert_clean(sequence: Sequence, vocabulary: Vocabulary) -> None:
    """No mask and no end token is handed out, and what was is all up to the answer's end."""
    text = sequence.canvas[: sequence.sent]
    assert not (vocabulary.classes[text] & END).any()
    assert not (text == vocabulary.mask_id).any()
    assert sequence.outcome in (Outcome.STOP, Outcome.LENGTH)


def test_answers_are_the_same_alone_and_in_a_crowd(runner: Runner, vocabulary: Vocabulary) -> None:
    crowd = run(runner, vocabulary, mixed(False) + mixed(False)[:15])
    for sequence, again in zip(crowd, crowd[17:], strict=False):
        assert facts(sequence) == facts(again)
        assert_clean(sequence, vocabulary)
    for ask, sequence in part(zip(mixed(False), crowd, strict=False), 5):
        assert facts(run(runner, vocabulary, [ask])[0]) == facts(sequence)


def test_answers_keep_to_a_grammar(runner: Runner, vocabulary: Vocabulary) -> None:
    for ask, sequence in zip(mixed(True), run(runner, vocabulary, mixed(True)), strict=True):
        if ask.constraint is not None:
            Draft202012Validator(ORDER).validate(json.loads(said(sequence)))


def test_the_shortest_prompts_and_answers_are_served(runner: Runner, vocabulary: Vocabulary) -> None:
    short = [
        Ask(prompt, length, decoder, {**knobs, "steps": 1} if "steps" in knobs else knobs)
        for prompt, length in ((PROMPTS[0], 1), (PROMPTS[1][:1], 17))
        for decoder, knobs in kinds(1)
    ]
    for sequence in run(runner, vocabulary, short):
        assert_clean(sequence, vocabulary)


def test_a_network_that_predicts_the_next_position_is_served() -> None:
    vocabulary = small_vocabulary()
    for sequence in run(
        small_runner(shift=1),
        vocabulary,
        [Ask([3], 32, *kind) for kind in kinds()],
        pattern=AttentionPattern(logit_shift=1),
    ):
        assert_clean(sequence, vocabulary)


def test_a_block_causal_network_is_served(vocabulary: Vocabulary) -> None:
    fits = [kind for kind in kinds(cache="prefix") if kind[0] != "ass"]
    asks = [Ask(PROMPTS[number % 4], 32, *kind) for number, kind in enumerate(fits)]
    for sequence in run(embedded_runner(model=BLOCKS_MODEL), vocabulary, asks, pattern=AttentionPattern(block_size=16)):
        assert_clean(sequence, vocabulary)
