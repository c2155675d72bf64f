"""Requests of every decoder in one engine: each gives what it gives alone, whatever else it asks for."""

from __future__ import annotations

from itertools import cycle, islice

import pytest

from asynclane.models.runner import Runner
from asynclane.scheduler.contract import Sampling
from asynclane.scheduler.knobs import KnobError
from asynclane.scheduler.methods import METHODS
from asynclane.scheduler.rules import JUDGES
from asynclane.scheduler.vocabulary import Vocabulary

from ..driver import Ask, run
from .test_golden import GOLDEN

CROWD = 32
PROMPTS = [prompt["prompt_ids"][:24] for prompt in GOLDEN["prompts"][:5]]


def asks() -> list[Ask]:
    """Every decoder and every rule of lanes, some of them sampled, of several lengths."""
    kinds = [(name, {}) for name in METHODS] + [("asynclane", {"rule": rule}) for rule in JUDGES]
    taken = []
    for number, (name, knobs) in enumerate(islice(cycle(kinds), max(CROWD, len(kinds)))):
        sampling = Sampling(temperature=0.8, seed=number) if number % 3 == 2 else Sampling()
        ask = Ask(
            PROMPTS[number % len(PROMPTS)], 24 + 8 * (number % 3), name, knobs, sampling, ranks=number % 2 or None
        )
        taken.append(ask)
    return taken


def test_an_answer_is_the_same_alone_and_in_a_crowd_of_all_decoders(runner: Runner, vocabulary: Vocabulary) -> None:
    asked = [ask for ask in asks() if _taken(runner, vocabulary, ask)]
    assert len(asked) >= CROWD
    for ask, crowded in zip(asked, run(runner, vocabulary, asked), strict=True):
        (alone,) = run(runner, vocabulary, [ask])
        assert crowded.canvas.tolist() == alone.canvas.tolist(), ask
        assert (crowded.steps, crowded.outcome) == (alone.steps, alone.outcome), ask


def _taken(runner: Runner, vocabulary: Vocabulary, ask: Ask) -> bool:
    """Rules that lanes of AsyncLane do not take are refused by name."""
    try:
        run(runner, vocabulary, [Ask(ask.prompt, 1, ask.decoder, ask.knobs)])
    except KnobError:
        return False
    return True


@pytest.mark.parametrize("name", METHODS)
def test_no_answer_holds_a_mask_before_its_end(name: str, runner: Runner, vocabulary: Vocabulary) -> None:
    """Of one token, and of a prompt of one token, too."""
    for prompt, length in ((PROMPTS[0], 1), (PROMPTS[0][:1], 20), (PROMPTS[1], 33)):
        (sequence,) = run(runner, vocabulary, [Ask(prompt, length, name)])
        handed_out = sequence.canvas[: min(sequence.frontier, sequence.end_at)]
        assert vocabulary.mask_id not in handed_out.tolist()
        assert sequence.end_at < sequence.frontier or sequence.frontier == length
