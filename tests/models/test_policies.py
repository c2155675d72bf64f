"""Decoders that choose where blocks end, or work on several at once: each is itself in any crowd, and without what is
its own it is Fast-dLLM."""

from __future__ import annotations

import pytest

from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import Sampling
from asynclane.scheduler.decoding.attention_pattern import AttentionPattern
from asynclane.scheduler.decoding.compatibility import VocabularyFacts, refuse
from asynclane.scheduler.decoding.params import ParamError
from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.scheduler.sequence import Sequence

from ..support.driver import BLOCKS_MODEL, Ask, embedded_runner, run
from ..support.scale import part
from .test_golden import GOLDEN

PROMPTS = [prompt["prompt_ids"] for prompt in GOLDEN["prompts"]]
CACHES = ("none", "prefix", "dual")
SERIAL = {"early_stop": False}


def facts(sequence: Sequence) -> tuple[object, ...]:
    book = sequence.scorebook
    scores = () if book is None else tuple(part.tolist() for part in book.part(0, sequence.sent))
    return sequence.canvas.tolist(), sequence.outcome, sequence.steps, sequence.computed_tokens, scores


def answers(runner: Runner, vocabulary: Vocabulary, decoder: str, **knobs: object) -> list[tuple[list[int], int]]:
    asks = [Ask(prompt, 64, decoder, SERIAL | knobs) for prompt in PROMPTS[:2]]
    return [(sequence.canvas.tolist(), sequence.steps) for sequence in run(runner, vocabulary, asks)]


@pytest.mark.parametrize("cache", CACHES)
def test_without_what_is_its_own_each_is_fast_dllm(cache: str, runner: Runner, vocabulary: Vocabulary) -> None:
    """AdaBlock that sees no delimiter, D2F that adds a block behind a full one, SlowFast that never gets fast."""
    plain = answers(runner, vocabulary, "fast-dllm", cache=cache)
    assert answers(runner, vocabulary, "adablock", cache=cache, window=0.0) == plain
    assert answers(runner, vocabulary, "d2f", cache=cache, add_threshold=1.0, active_threshold=1.0) == plain
    assert answers(runner, vocabulary, "slowfast", cache=cache, block_length=32, slow_calls=4096) == plain


@pytest.mark.parametrize("rule", [{"factor": 1.0}, {"steps": 8}, {"rule": "localleap"}], ids=str)
def test_blocks_of_chosen_length_go_with_every_rule(
    rule: dict[str, object], runner: Runner, vocabulary: Vocabulary
) -> None:
    assert answers(runner, vocabulary, "adablock", window=0.0, **rule) == answers(
        runner, vocabulary, "fast-dllm", **rule
    )
    for canvas, _ in answers(runner, vocabulary, "adablock", delimiters="newline_period_comma", **rule):
        assert vocabulary.mask_id not in canvas


def test_a_block_that_starts_early_saves_calls(runner: Runner, vocabulary: Vocabulary) -> None:
    serial = answers(runner, vocabulary, "d2f", cache="none", add_threshold=1.0)
    eager = answers(runner, vocabulary, "d2f", cache="none", add_threshold=0.1)
    assert sum(calls for _, calls in eager) < sum(calls for _, calls in serial)


def crowd() -> list[Ask]:
    """Requests of all four with other caches, rules and lengths, prompts of one token and answers of one."""
    asks = []
    for number, prompt in enumerate(PROMPTS[:8]):
        cache = {"cache": CACHES[number % 3]}
        drawn = Sampling(temperature=1.0 if number % 2 else 0.0, seed=number)
        length = (1, 40, 33, 64)[number % 4]
        ranks = 3 if number % 3 == 1 else None
        asks += [
            Ask(prompt, length, "adablock", cache | {"delimiters": "newlines"}, drawn, ranks=ranks),
            Ask(prompt[:1], length, "d2f", cache | {"add_threshold": 0.2}, drawn, ranks=ranks),
            Ask(prompt, length, "d3llm", cache, drawn, ranks=ranks),
            Ask(prompt, length, "slowfast", cache | {"explore": "stable", "slow_calls": 3}, drawn, ranks=ranks),
        ]
    return asks


def test_an_answer_is_the_same_alone_and_in_a_crowd(runner: Runner, vocabulary: Vocabulary) -> None:
    together = run(runner, vocabulary, crowd())
    for ask, sequence in part(zip(crowd(), together, strict=True), 7):
        (alone,) = run(runner, vocabulary, [ask])
        assert facts(alone) == facts(sequence), ask
    for sequence in together:
        assert vocabulary.mask_id not in sequence.canvas[: sequence.sent]


@pytest.mark.parametrize("decoder", ["d2f", "d3llm", "slowfast"])
def test_a_block_causal_network_runs_several_blocks_and_cycles_too(decoder: str, vocabulary: Vocabulary) -> None:
    """Its cache is exact."""
    runner, pattern = embedded_runner(model=BLOCKS_MODEL), AttentionPattern(block_size=16)
    asks = [Ask(PROMPTS[0], 40, decoder, SERIAL | {"cache": cache}) for cache in ("none", "prefix")]
    whole, cached = run(runner, vocabulary, asks, pattern=pattern)
    assert whole.canvas.tolist() == cached.canvas.tolist()
    assert vocabulary.mask_id not in whole.canvas


def test_delimiters_that_a_vocabulary_has_not_are_refused_by_name() -> None:
    decoder = resolve("adablock", {}, 64)
    refuse(VocabularyFacts(decoder, Vocabulary(["", "a", "\n"], mask_id=0, end_ids=[])))
    for tokens, instead in (["", "a", ","], "give 'newline_period_comma'"), (["", "a"], "use another decoder"):
        with pytest.raises(ParamError, match=f"delimiters 'newline' needs a token .*: {instead}") as refused:
            refuse(VocabularyFacts(decoder, Vocabulary(tokens, mask_id=0, end_ids=[])))
        assert refused.value.param == "delimiters"
