"""What lies between prompt and suffix is written for both, by every decoder, and depends on nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from asynclane.bench.quality.holes import holes
from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import Sampling
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.scheduler.logit_bias import Preferences
from asynclane.scheduler.sequence import Sequence
from asynclane.scheduler.step_cost import Halving, StepCost
from asynclane.server.text.tokenizer import Tokenizer

from ..support.driver import LIMITS, MODEL, Ask, run
from .test_invariance import DECODERS, QUESTIONS

TEXT = Tokenizer(MODEL)
SHARED = [decoder for decoder in DECODERS if "isolated" not in decoder[1].values()]
GAPS = holes(21, 4, "name")


def ids(text: str) -> list[int]:
    return TEXT.encode(text, specials=False)


def gap_ask(number: int, decoder: tuple[str, dict[str, object]]) -> Ask:
    gap = GAPS[number]
    chat = [{"role": "user", "content": gap.question}, {"role": "assistant", "content": gap.before}]
    return Ask(TEXT.encode_chat(chat), len(ids(gap.middle)), *decoder, suffix=ids(gap.behind))


def answer(sequence: Sequence) -> list[int]:
    return [int(token) for token in sequence.canvas[: sequence.sent]]


def crowd() -> list[Ask]:
    """With every decoder; greedy, sampled, with penalties and scores; beside requests without a suffix."""
    asks = [gap_ask(number % len(GAPS), decoder) for number, decoder in enumerate(SHARED)]
    asks[1] = replace(asks[1], sampling=Sampling(0.9, 0.9, 3), max_tokens=16)
    asks[2] = replace(asks[2], preferences=Preferences(presence=0.5), ranks=2, max_tokens=16)
    question = TEXT.encode_chat([{"role": "user", "content": QUESTIONS[4]}])
    return [*asks, Ask(question, 32), Ask(question, 32, suffix=ids(" The end."), sampling=Sampling(1.0, seed=1))]


def test_middles_are_the_same_alone_in_a_crowd_and_with_two_steps_in_flight(
    runner: Runner, vocabulary: Vocabulary
) -> None:
    asks = crowd()
    two_at_once = Halving(StepCost([1, 1000], [0.001, 1.0]))
    in_flight = run(runner, vocabulary, asks, halving=two_at_once)
    for ask, together, two in zip(asks, run(runner, vocabulary, asks), in_flight, strict=True):
        (alone,) = run(runner, vocabulary, [ask])
        assert alone.canvas.tolist() == together.canvas.tolist() == two.canvas.tolist()
        assert (alone.steps, alone.computed_tokens) == (together.steps, together.computed_tokens)


@pytest.mark.parametrize("decoder", ["asynclane", "fast-dllm", "llada"])
def test_the_line_that_only_the_suffix_tells_is_written(decoder: str, runner: Runner, vocabulary: Vocabulary) -> None:
    """Without it, nobody could know which function is meant."""
    asks = [gap_ask(number, (decoder, {})) for number in range(len(GAPS))]
    told = [TEXT.decode(answer(sequence)) for sequence in run(runner, vocabulary, asks)]
    blind = [TEXT.decode(answer(s)) for s in run(runner, vocabulary, [replace(ask, suffix=()) for ask in asks])]
    assert [gap.filled(text) for gap, text in zip(GAPS, told, strict=True)] == [True] * len(GAPS)
    assert not any(gap.filled(text) for gap, text in zip(GAPS, blind, strict=True))


def test_choices_of_a_prompt_with_a_suffix_share_its_pages_and_answer_as_each_does_alone(
    runner: Runner, vocabulary: Vocabulary
) -> None:
    base = replace(gap_ask(0, ("asynclane", {})), max_tokens=20, share_group="one")
    asks = [replace(base, sampling=Sampling(1.0, seed=seed)) for seed in range(3)]
    together = run(runner, vocabulary, asks)
    common = len(base.prompt) // LIMITS.page_size
    assert common > 0
    for sequence, ask in zip(together, asks, strict=True):
        (alone,) = run(runner, vocabulary, [replace(ask, share_group=None)])
        assert answer(alone) == answer(sequence)
        assert len(alone.holding.pages) - len(sequence.holding.pages) == common
