"""Decoders whose rule the host applies: each equal to itself alone, in a crowd, constrained or not."""

from __future__ import annotations

from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import Sampling
from asynclane.scheduler.decoding.vocabulary import Vocabulary

from ..support.driver import Ask, run
from .test_golden import GOLDEN

LENGTH = 64
PROMPTS = [prompt["prompt_ids"] for prompt in GOLDEN["prompts"][:4]]


def answers(runner: Runner, vocabulary: Vocabulary, decoder: str, **knobs: object) -> list[tuple[list[int], int]]:
    asks = [Ask(prompt, LENGTH, decoder, knobs) for prompt in PROMPTS]
    return [(sequence.canvas.tolist(), sequence.steps) for sequence in run(runner, vocabulary, asks)]


def test_a_judge_decides_as_the_device_would(runner: Runner, vocabulary: Vocabulary) -> None:
    """LocalLeap without a leap is Fast-dLLM."""
    for cache in ("none", "prefix", "dual"):
        judged = answers(runner, vocabulary, "localleap", near_threshold=0.9, cache=cache)
        assert judged == answers(runner, vocabulary, "fast-dllm", threshold=0.9, cache=cache)


def test_a_judge_serves_lanes(runner: Runner, vocabulary: Vocabulary) -> None:
    judged = answers(runner, vocabulary, "asynclane", rule="localleap", near_threshold=0.95, threshold=0.95)
    assert judged == answers(runner, vocabulary, "asynclane")


def test_what_a_judge_let_commit_keeps_its_own_log_probability(runner: Runner, vocabulary: Vocabulary) -> None:
    """Of the call that committed it, as the device's own rules do."""
    judged, plain = (
        run(runner, vocabulary, [Ask(PROMPTS[0], LENGTH, decoder, knobs, ranks=2)])[0]
        for decoder, knobs in (("localleap", {"near_threshold": 0.9}), ("fast-dllm", {}))
    )
    assert judged.scorebook is not None
    assert plain.scorebook is not None
    for mine, theirs in zip(judged.scorebook.part(0, LENGTH), plain.scorebook.part(0, LENGTH), strict=True):
        assert mine.tolist() == theirs.tolist()


def test_a_judge_draws_as_the_device_does(runner: Runner, vocabulary: Vocabulary) -> None:
    hot = Sampling(temperature=1.0, seed=7)
    judged, plain = (
        run(runner, vocabulary, [Ask(PROMPTS[1], LENGTH, decoder, knobs, hot)])[0].canvas.tolist()
        for decoder, knobs in (("localleap", {"near_threshold": 0.9}), ("fast-dllm", {}))
    )
    assert judged == plain
