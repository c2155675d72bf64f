"""Learnt and forecast rules serve every request that others serve, and answer it as if it were alone."""

from __future__ import annotations

import pytest

from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import Sampling
from asynclane.scheduler.decoding.attention_pattern import AttentionPattern
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.scheduler.request import Outcome

from ..support.driver import BLOCKS_MODEL, Ask, embedded_runner, run
from ..support.scale import part
from .test_golden import GOLDEN

PROMPTS = [prompt["prompt_ids"] for prompt in GOLDEN["prompts"][:6]]
HOT = Sampling(temperature=1.0, top_p=0.95, seed=5)
DECODERS: list[tuple[str, dict[str, object]]] = [
    ("ce", {}),
    ("learn2pd", {}),
    ("learn2pd", {"eotp": False, "extrapolate": True, "cache": "prefix"}),
    ("learn2pd", {"cache": "dual", "block_length": 48}),
    ("tspd", {}),
    ("tspd", {"extrapolate": True, "cache": "none"}),
    ("fast-dllm", {"rule": "tspd"}),
    ("asynclane", {"rule": "ce"}),
    ("asynclane", {"rule": "learn2pd"}),
    ("asynclane", {"rule": "learn2pd", "eotp": False}),
    ("asynclane", {"rule": "tspd", "siblings": "coupled"}),
]


def asks() -> list[Ask]:
    """32 requests, of which some are a prompt of one token, or may answer with one."""
    made = []
    for number in range(32):
        name, knobs = DECODERS[number % len(DECODERS)]
        prompt, length = PROMPTS[number % len(PROMPTS)], 48 + 16 * (number % 2)
        if number % 8 == 5:
            prompt = prompt[:1]
        made.append(Ask(prompt, 1 if number % 8 == 6 else length, name, knobs, HOT if number % 3 == 1 else Sampling()))
    return made


def test_an_answer_is_the_same_alone_and_in_a_crowd(runner: Runner, vocabulary: Vocabulary) -> None:
    together = run(runner, vocabulary, asks())
    for number, ask in part(enumerate(asks()), 5):
        (alone,) = run(runner, vocabulary, [ask])
        assert alone.canvas.tolist() == together[number].canvas.tolist(), ask
        assert (alone.steps, alone.outcome) == (together[number].steps, together[number].outcome), ask


@pytest.mark.parametrize(("name", "knobs"), DECODERS)
def test_no_answer_holds_a_mask_before_its_end(
    name: str, knobs: dict[str, object], runner: Runner, vocabulary: Vocabulary
) -> None:
    for sequence in run(runner, vocabulary, [Ask(prompt, 64, name, knobs) for prompt in part(PROMPTS[:3], 3)]):
        assert sequence.outcome in (Outcome.STOP, Outcome.LENGTH)
        end = min(sequence.end_at, sequence.frontier)
        assert vocabulary.mask_id not in sequence.canvas[:end]


def test_a_blocks_network_is_served_too(vocabulary: Vocabulary) -> None:
    runner = embedded_runner(model=BLOCKS_MODEL)
    made = [Ask(PROMPTS[number % 6], 64, name, fitted(knobs)) for number, (name, knobs) in enumerate(DECODERS)]
    for sequence in run(runner, vocabulary, made, pattern=AttentionPattern(0, 16)):
        assert sequence.outcome in (Outcome.STOP, Outcome.LENGTH)


def fitted(knobs: dict[str, object]) -> dict[str, object]:
    return {knob: value for knob, value in knobs.items() if knob not in ("cache", "block_length")}


def test_a_forecast_of_nothing_is_the_threshold_alone(runner: Runner, vocabulary: Vocabulary) -> None:
    forecast = run(runner, vocabulary, [Ask(prompt, 64, "ce", {"horizon": 0}) for prompt in PROMPTS[:3]])
    plain = run(runner, vocabulary, [Ask(prompt, 64, "fast-dllm") for prompt in PROMPTS[:3]])
    assert [(s.canvas.tolist(), s.steps) for s in forecast] == [(s.canvas.tolist(), s.steps) for s in plain]
