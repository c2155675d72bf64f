"""Requests of every decoder in one engine: each gives what it gives alone, whatever else it asks for."""

from __future__ import annotations

import pytest

from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import Sampling
from asynclane.scheduler.decoding.attention_pattern import PLAIN
from asynclane.scheduler.decoding.commit import HOST_RULES
from asynclane.scheduler.decoding.params import ParamError
from asynclane.scheduler.decoding.registry import DECODERS
from asynclane.scheduler.decoding.resolve import resolve, suits
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.scheduler.request import Outcome

from ..support.driver import Ask, run
from ..support.scale import part
from .test_golden import GOLDEN

CROWD = 32
LENGTHS = 12, 16, 24
TAKEN = [name for name in DECODERS if suits(name, PLAIN)]
PROMPTS = [prompt["prompt_ids"][:24] for prompt in GOLDEN["prompts"][:5]]


def asks() -> list[Ask]:
    """Every decoder, and lanes with every rule that they take, some sampled, some scored, of several lengths."""
    kinds: list[tuple[str, dict[str, object]]] = [(name, {}) for name in TAKEN]
    kinds += [("asynclane", {"rule": rule}) for rule in HOST_RULES if _taken("asynclane", {"rule": rule})]
    taken = []
    for number, (name, knobs) in enumerate(kinds):
        sampling = Sampling(temperature=0.8, seed=number) if number % 3 == 2 else Sampling()
        ranks = number % 2 if number % 2 and resolve(name, knobs, LENGTHS[0]).scored else None
        taken.append(Ask(PROMPTS[number % len(PROMPTS)], LENGTHS[number % 3], name, knobs, sampling, ranks=ranks))
    return taken


def _taken(name: str, knobs: dict[str, object]) -> bool:
    try:
        resolve(name, knobs, LENGTHS[0])
    except ParamError:
        return False
    return True


def test_an_answer_is_the_same_alone_and_in_a_crowd_of_all_decoders(runner: Runner, vocabulary: Vocabulary) -> None:
    asked = asks()
    assert len(asked) >= CROWD
    together = run(runner, vocabulary, asked)
    for ask, crowded in part(zip(asked, together, strict=True), 5):
        (alone,) = run(runner, vocabulary, [ask])
        assert crowded.canvas.tolist() == alone.canvas.tolist(), ask
        assert (crowded.steps, crowded.outcome) == (alone.steps, alone.outcome), ask


@pytest.mark.parametrize("name", TAKEN)
def test_no_answer_holds_a_mask_before_its_end(name: str, runner: Runner, vocabulary: Vocabulary) -> None:
    """Of one token, and of a prompt of one token, too."""
    asks = [Ask(prompt, length, name) for prompt, length in ((PROMPTS[0], 1), (PROMPTS[0][:1], 20), (PROMPTS[1], 33))]
    for sequence in run(runner, vocabulary, asks):
        handed_out = sequence.canvas[: min(sequence.frontier, sequence.end_at)]
        assert vocabulary.mask_id not in handed_out.tolist()
        assert sequence.outcome is Outcome.STOP or sequence.frontier == sequence.request.max_tokens
