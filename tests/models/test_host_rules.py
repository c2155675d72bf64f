"""Rules that the host applies: at its limits each is the rule that it extends, and what it adds saves forwards."""

from __future__ import annotations

from collections.abc import Mapping

from asynclane.models.exec.runner import Runner
from asynclane.scheduler import Sampling, Vocabulary

from ..support.driver import Answer, Spec, run
from ..support.golden import PROMPTS, WHOLE
from ..support.scale import part

LENGTH = 32
STORY = PROMPTS[4]
SOME = part([PROMPTS[0], STORY], 2)
TWICE = {"early_stop": False, "block_length": 16, "steps": 8}
NO_GAP = {"early_gap": 100.0, "mid_gap": 100.0, "late_gap": 100.0}
NO_LEAP = {"near_threshold": 0.9}

Params = Mapping[str, object]


def answers(runner: Runner, vocabulary: Vocabulary, *asked: tuple[str, Params]) -> list[list[tuple[list[int], int]]]:
    """Those of each decoder to all prompts, computed together."""
    specs = [Spec(prompt, LENGTH, decoder, params) for decoder, params in asked for prompt in SOME]
    found = [(answer.canvas.tolist(), answer.steps) for answer in run(runner, vocabulary, specs)]
    return [found[at : at + len(SOME)] for at in range(0, len(found), len(SOME))]


EXTENDED: list[tuple[str, Params, str, Params]] = [
    ("klass", {"threshold": 1.0, "watch": "lanes", **TWICE}, "llada", TWICE),
    ("eoser", {"end_weight": 1.0, **TWICE}, "llada", TWICE),
    ("prophet", {**NO_GAP, **TWICE}, "llada", TWICE),
    ("prophet", {"threshold": 0.9, **NO_GAP}, "fast-dllm", {}),
    ("ahd", {"drift": 0.0}, "fast-dllm", {}),
    ("ce", {"horizon": 0}, "fast-dllm", {}),
    ("credit", {"credit_alpha": 0.0, "cache": "prefix"}, "fast-dllm", {"cache": "prefix"}),
    ("llada2", {"threshold": 0.7, "edit_steps": 0}, "fast-dllm", {"threshold": 0.7}),
    ("t2m", {"remask_threshold": 0.0}, "llada2", {"edit_threshold": 1.0}),
    ("entropy-cache", {"cache": "entropy", "entropy_limit": 0.0}, "fast-dllm", {"cache": "none"}),
    (
        "elastic-cache",
        {"cache": "elastic", "least_similarity": 1.5, "early_stop": False},
        "dsb",
        {"cache": "none", "block_length": 16, "early_stop": False},
    ),
    ("t2m", {"remask_times": 0}, "llada2", {"edit_threshold": 1.0}),
    ("localleap", {**NO_LEAP, "cache": "none"}, "fast-dllm", {"cache": "none"}),
    ("localleap", NO_LEAP, "fast-dllm", {}),
    ("nap", {"tokens_per_call": 4, "early_stop": False}, "llada", {"steps": LENGTH // 4, "early_stop": False}),
    (
        "asynclane",
        {"rule": "localleap", "near_threshold": 0.95, "threshold": 0.95, "cache": "compact"},
        "asynclane",
        {"cache": "compact"},
    ),
]


def test_a_rule_at_its_limit_is_the_one_it_extends(runner: Runner, vocabulary: Vocabulary) -> None:
    extended = part(EXTENDED, 2)
    pairs = [((decoder, params), (other, its)) for decoder, params, other, its in extended]
    asked = [(decoder, {"cache": "dual", **params}) for pair in pairs for decoder, params in pair]
    found = answers(runner, vocabulary, *asked)
    for rule, one, other in zip(extended, found[::2], found[1::2], strict=True):
        assert one == other, rule


def test_the_host_draws_and_scores_as_the_device_does(runner: Runner, vocabulary: Vocabulary) -> None:
    """A token has the log-probability of the forward that committed it."""

    def answer(decoder: str, params: Params) -> Answer:
        return run(runner, vocabulary, [Spec(STORY, 40, decoder, params, Sampling(1.0, seed=7), ranks=2)])[0]

    host, device = answer("localleap", NO_LEAP), answer("fast-dllm", {})
    assert host.canvas.tolist() == device.canvas.tolist()
    assert host.scores is not None
    assert device.scores is not None
    assert [part.tolist() for part in host.scores if part is not None] == [
        part.tolist() for part in device.scores if part is not None
    ]


def test_what_a_rule_adds_saves_forwards(runner: Runner, vocabulary: Vocabulary) -> None:
    def asked(decoder: str, prompt: list[int] = STORY, **params: object) -> Spec:
        return Spec(prompt, 48, decoder, {"cache": "dual", **params})

    pairs = [
        (asked("credit"), asked("fast-dllm")),
        (asked("localleap"), asked("fast-dllm")),
        (asked("ahd", history=1, drift=1.0, block_length=8), asked("ahd", drift=0.0, block_length=8)),
        (asked("ccd", steps=24), asked("ccd", steps=24, warmup=4096)),
        (asked("klass", steps=24), asked("llada", steps=24)),
        (asked("prophet", PROMPTS[5], steps=24), asked("llada", PROMPTS[5], steps=24)),
    ]
    pairs = part(pairs, 2)
    found = run(runner, vocabulary, [spec for pair in pairs for spec in pair])
    for (rule, _), with_it, without in zip(pairs, found[::2], found[1::2], strict=True):
        assert with_it.steps < without.steps, rule


def test_ass_takes_as_many_forwards_as_a_block_has_doublings(runner: Runner, vocabulary: Vocabulary) -> None:
    halves = {"rule": "ass", "block_length": 16, **WHOLE}
    found = answers(runner, vocabulary, ("ass", {"cache": "none", **WHOLE}), ("fast-dllm", halves))
    assert [{steps for _, steps in some} for some in found] == [{5}, {8}]


def test_prophet_commits_all_at_once_if_no_gap_is_needed(runner: Runner, vocabulary: Vocabulary) -> None:
    early = {"early_gap": 0.0, "cache": "none", **WHOLE, "answer_at": 20}
    (found,) = answers(runner, vocabulary, ("prophet", early))
    assert {steps for _, steps in found} == {1}
