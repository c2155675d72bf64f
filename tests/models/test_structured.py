"""Grammars on the real network: what they force, what they refuse, and texts of many expressions.

tests/invariants/test_streaming.py has a schema with every kind of decoder.
"""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest

from asynclane.models.exec.runner import Runner
from asynclane.scheduler import Outcome, ParamError, Preferences, Sampling, Vocabulary, resolve
from asynclane.server.structured.grammar import Wanted
from asynclane.server.text.logprobs import LogprobReader, Place

from ..support.cases import CHATS, GUIDED, TEXT
from ..support.driver import Spec, run
from ..support.grammars import ORDER, constraints, regex, schema
from ..support.scale import part

PROMPT = CHATS[1]
QUOTES = [token for token, piece in enumerate(TEXT.pieces) if '"' in piece and piece != '"']


def random_pattern(rng: random.Random, depth: int = 2) -> str:
    """A small regular expression."""
    if not depth or rng.random() < 0.2:
        return rng.choice(["a", "[a-z]", r"\d", "the ", "[^x]", ", ", "(?:yes|no)", r"\w"])
    parts = [random_pattern(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.4:
        return f"(?:{'|'.join(parts)})"
    return "".join(parts) + f"(?:{parts[0]}){rng.choice(['?', '{2}', '{0,3}', '+'])}"


def test_a_text_that_stops_always_matches_its_expression(runner: Runner, vocabulary: Vocabulary) -> None:
    rng = random.Random(5)
    patterns = [random_pattern(rng) for _ in range(24)]
    specs = [
        Spec(PROMPT, 24, GUIDED[n % len(GUIDED)], sampling=Sampling(1.0, 1.0, n), constraint=regex(pattern))
        for n, pattern in enumerate(patterns)
    ]
    answers = run(runner, vocabulary, specs)
    stopped = [
        (pattern, TEXT.decode(answer.text))
        for pattern, answer in zip(patterns, answers, strict=True)
        if answer.outcome is Outcome.STOP
    ]
    assert len(stopped) > 16
    for pattern, text in stopped:
        assert re.fullmatch(pattern, text), (pattern, text)


def test_tokens_that_a_grammar_forces_cost_no_forward(runner: Runner, vocabulary: Vocabulary) -> None:
    long = "The quick brown fox jumps over the lazy dog. " * 2
    choice = constraints(Wanted("guided_choice", choice=(long + "yes", long + "no")))
    (answer,) = run(runner, vocabulary, [Spec(PROMPT, 64, constraint=choice)])
    assert TEXT.decode(answer.text) in (long + "yes", long + "no")
    assert answer.sent > 20
    assert answer.steps <= 2


def test_an_answer_that_was_cut_short_says_so_and_parses(runner: Runner, vocabulary: Vocabulary) -> None:
    made = schema({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]})
    endless = Preferences(bias=dict.fromkeys(QUOTES, -1e4))
    (answer,) = run(runner, vocabulary, [Spec(PROMPT, 24, preferences=endless, constraint=made)])
    assert answer.outcome is Outcome.LENGTH
    assert isinstance(json.loads(TEXT.decode(answer.text)), dict)


def test_a_network_that_would_end_closes_its_answer(runner: Runner, vocabulary: Vocabulary) -> None:
    """Without an end, digits follow until the room is used."""
    price = {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}
    made = schema({**price, "additionalProperties": False})
    free = Preferences(min_tokens=48)
    open_, closed = run(
        runner, vocabulary, [Spec(PROMPT, 48, preferences=free, constraint=made), Spec(PROMPT, 48, constraint=made)]
    )
    assert open_.outcome is Outcome.LENGTH
    assert closed.outcome is Outcome.STOP
    assert closed.steps < open_.steps / 4


@pytest.mark.parametrize("decoder", ["asynclane", "llada"])
def test_tokens_commit_out_of_order_and_have_the_probability_of_their_step(
    decoder: str, runner: Runner, vocabulary: Vocabulary
) -> None:
    repeated = schema({"type": "string", "maxLength": 60})
    specs = [Spec(prompt, 48, decoder, ranks=2, constraint=repeated) for prompt in part(CHATS, 2)]
    answers = run(runner, vocabulary, specs)
    early = 0
    for answer in answers:
        assert answer.scores is not None
        steps, ranked = answer.scores.steps, answer.scores.ranked[:, 0]
        ahead = np.flatnonzero(steps[:-1] > np.minimum.accumulate(steps[::-1])[::-1][1:])
        early += len(ahead)
        assert (answer.scores.logprobs <= 0).all()
        assert (ranked[1:][np.diff(steps) < 0] == answer.canvas[1 : answer.sent][np.diff(steps) < 0]).all()
    assert early > 0


def test_a_forced_token_has_probability_one(runner: Runner, vocabulary: Vocabulary) -> None:
    (answer,) = run(runner, vocabulary, [Spec(PROMPT, 24, ranks=3, constraint=regex("Paris is [0-9]"))])
    assert answer.scores is not None
    assert answer.sent > 1
    assert answer.scores.logprobs[0] == 0
    assert answer.scores.logprobs[-1] < 0
    assert answer.scores.ranked[0, 0] == answer.canvas[0]
    read = LogprobReader(TEXT).read(answer.canvas.tolist(), [Place(0, 1)], answer.scores)
    assert len(read[0].ranked) == 1, "a token that could not come is no alternative"


@pytest.mark.parametrize("params", [{"siblings": "isolated"}, {"early_stop": False}], ids=str)
def test_a_decoder_that_cannot_follow_a_grammar_is_refused_and_both_are_named(
    params: dict[str, object], runner: Runner, vocabulary: Vocabulary
) -> None:
    assert resolve("asynclane", params, 64)
    with pytest.raises(ParamError, match="response_format") as refused:
        run(runner, vocabulary, [Spec(PROMPT, 64, "asynclane", params, constraint=schema(ORDER))])
    assert refused.value.param == next(iter(params))
