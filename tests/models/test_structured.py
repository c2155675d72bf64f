"""Answers that are held to a grammar keep to it on the real network, whatever runs beside them."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable

import pytest
from jsonschema import Draft202012Validator

from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import Sampling
from asynclane.scheduler.decoding.params import ParamError
from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.scheduler.grammar_guide import Constraint
from asynclane.scheduler.logit_bias import Preferences
from asynclane.scheduler.request import Outcome
from asynclane.scheduler.sequence import Sequence
from asynclane.scheduler.step_cost import Halving, StepCost
from asynclane.server.structured.grammar import Grammars, Wanted
from asynclane.server.text.logprobs import LogprobReader, Place
from asynclane.server.text.tokenizer import Tokenizer

from ..support.driver import MODEL, Ask, run
from ..support.scale import part
from .test_invariance import QUESTIONS

TEXT = Tokenizer(MODEL)
GRAMMARS = Grammars(TEXT)
PROMPT = TEXT.encode_chat([{"role": "user", "content": QUESTIONS[1]}])
ORDER = {
    "type": "object",
    "properties": {
        "item": {"enum": ["book", "egg"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "note": {"type": "string", "maxLength": 12},
    },
    "required": ["item", "count", "note"],
    "additionalProperties": False,
}
KINDS: list[tuple[str, dict[str, object]]] = [
    ("asynclane", {}),
    ("asynclane", {"threshold": 0.6, "refresh_every": 1, "stable_steps": 1, "siblings": "commit"}),
    ("fast-dllm", {}),
    ("fast-dllm", {"factor": 1.0, "cache": "prefix"}),
    ("freedave", {}),
    ("lopa", {}),
    ("llada", {"steps": 16, "block_length": 24}),
    ("adablock", {}),
    ("d3llm", {}),
    ("slowfast", {}),
    ("dream", {"steps": 16, "alg_temp": 0.5}),
    ("dream", {"steps": 16, "alg": "origin"}),
    ("fast-dllm", {"cache": "d2", "candidates": 4}),
    ("window", {"steps": 16, "active_tokens": 4}),
    ("learn2pd", {}),
    ("tspd", {"extrapolate": True}),
]


def constraints(wanted: Wanted) -> Callable[[], Constraint]:
    grammar = asyncio.run(GRAMMARS.compile(wanted))
    return lambda: GRAMMARS.constraint(grammar)


def schema(value: object) -> Callable[[], Constraint]:
    return constraints(Wanted("response_format", schema=json.dumps(value)))


def said(sequence: Sequence) -> str:
    return TEXT.decode([int(token) for token in sequence.canvas[: sequence.sent]])


def facts(sequence: Sequence) -> tuple[object, ...]:
    book = sequence.scorebook
    scores = () if book is None else tuple(part.tolist() for part in book.part(0, sequence.sent))
    return sequence.canvas.tolist(), sequence.outcome, sequence.steps, sequence.computed_tokens, scores


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_decoder_keeps_to_a_schema_alone_in_a_crowd_and_with_two_steps_in_flight(
    kind: tuple[str, dict[str, object]], runner: Runner, vocabulary: Vocabulary
) -> None:
    made = schema(ORDER)

    def asks() -> list[Ask]:
        hot = [Sampling(1.0, 0.95, seed) for seed in range(2)]
        held = [Ask(PROMPT, 48, *kind, sampling, ranks=2, constraint=made()) for sampling in [Sampling(), *hot]]
        free = Ask(TEXT.encode_chat([{"role": "user", "content": QUESTIONS[0]}]), 48, *kind)
        return [free, *held]

    crowd = run(runner, vocabulary, asks())
    assert said(crowd[0]) == "The capital of France is Paris."
    for sequence in crowd[1:]:
        assert sequence.outcome is Outcome.STOP
        Draft202012Validator(ORDER).validate(json.loads(said(sequence)))
    for ask, sequence in part(zip(asks(), crowd, strict=True), 3):
        assert facts(run(runner, vocabulary, [ask])[0]) == facts(sequence)
    flying = run(runner, vocabulary, asks(), halving=Halving(StepCost([1, 1000], [0.001, 1.0])))
    assert list(map(facts, flying)) == list(map(facts, crowd))


def test_a_text_that_stops_always_matches_its_expression(runner: Runner, vocabulary: Vocabulary) -> None:
    rng = random.Random(5)
    patterns = [random_pattern(rng) for _ in range(24)]
    asks = [
        Ask(
            PROMPT,
            24,
            *KINDS[n % len(KINDS)],
            Sampling(1.0, 1.0, n),
            constraint=constraints(Wanted("guided_regex", regex=p))(),
        )
        for n, p in enumerate(patterns)
    ]
    answers = run(runner, vocabulary, asks)
    stopped = [(p, said(s)) for p, s in zip(patterns, answers, strict=True) if s.outcome is Outcome.STOP]
    assert len(stopped) > 16
    for pattern, text in stopped:
        assert re.fullmatch(pattern, text), (pattern, text)


def random_pattern(rng: random.Random, depth: int = 2) -> str:
    """A small regular expression."""
    if not depth or rng.random() < 0.2:
        return rng.choice(["a", "[a-z]", r"\d", "the ", "[^x]", ", ", "(?:yes|no)", r"\w"])
    parts = [random_pattern(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.4:
        return f"(?:{'|'.join(parts)})"
    return "".join(parts) + f"(?:{parts[0]}){rng.choice(['?', '{2}', '{0,3}', '+'])}"


def test_what_a_grammar_forces_costs_no_call(runner: Runner, vocabulary: Vocabulary) -> None:
    long = "The quick brown fox jumps over the lazy dog. " * 2
    wanted = Wanted("guided_choice", choice=(long + "yes", long + "no"))
    (answer,) = run(runner, vocabulary, [Ask(PROMPT, 64, constraint=constraints(wanted)())])
    assert said(answer) in (long + "yes", long + "no")
    assert answer.sent > 20
    assert answer.steps <= 2


def test_an_answer_that_was_cut_short_says_so_and_parses(runner: Runner, vocabulary: Vocabulary) -> None:
    made = schema({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]})
    ask = Ask(PROMPT, 24, preferences=Preferences(bias=dict.fromkeys(QUOTES, -1e4)), constraint=made())
    (answer,) = run(runner, vocabulary, [ask])
    assert answer.outcome is Outcome.LENGTH
    assert isinstance(json.loads(said(answer)), dict)


QUOTES = [token for token, piece in enumerate(TEXT.pieces) if '"' in piece and piece != '"']


def test_a_forced_token_has_probability_one(runner: Runner, vocabulary: Vocabulary) -> None:
    made = constraints(Wanted("guided_regex", regex="Paris is [0-9]"))
    (answer,) = run(runner, vocabulary, [Ask(PROMPT, 24, ranks=3, constraint=made())])
    assert answer.scorebook is not None
    scored = answer.scorebook.part(0, answer.sent)
    assert answer.sent > 1
    assert scored.logprobs[0] == 0
    assert scored.logprobs[-1] < 0
    assert scored.ranked[0, 0] == answer.canvas[0]
    read = LogprobReader(TEXT).read(answer.canvas.tolist(), [Place(0, 1)], scored)
    assert len(read[0].ranked) == 1, "what could not come is no alternative"


@pytest.mark.parametrize("knobs", [{"siblings": "isolated"}, {"early_stop": False}], ids=str)
def test_a_decoder_that_cannot_follow_a_grammar_is_refused_and_both_are_named(
    knobs: dict[str, object], runner: Runner, vocabulary: Vocabulary
) -> None:
    assert resolve("asynclane", knobs, 64)
    with pytest.raises(ParamError, match="response_format") as refused:
        run(runner, vocabulary, [Ask(PROMPT, 64, "asynclane", knobs, constraint=schema(ORDER)())])
    assert refused.value.param == next(iter(knobs))
