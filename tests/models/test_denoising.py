"""Answers of DiffusionGemma are those of transformers' `generate`, with our random numbers in the place of torch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from asynclane.kernels.common.noise import token_noise
from asynclane.kernels.common.types import Draws
from asynclane.models.checkpoint.config import read_config
from asynclane.models.exec.runner import Runner
from asynclane.scheduler import Limits, Outcome, Preferences, Sampling, Scheduler, Vocabulary
from asynclane.scheduler.decoding.attention_pattern import AttentionPattern
from asynclane.scheduler.decoding.denoising import INITIAL, RENOISED, random_tokens

from ..support.driver import TWO_IN_FLIGHT, Answer, Spec, run, serve
from ..support.gemma import CANVAS, VOCABULARY, gemma_runner, published_gemma, write_gemma
from ..support.scale import ALL, LONG, crossed, part

LIMITS = Limits(slots=4, pages=32, page_size=16, step_tokens=512, max_model_len=120, max_queue=64)
MASK, ENDS = 5, (1, 9)
SAMPLERS = [
    {},  # the published values: random weights are never certain
    {"max_denoising_steps": 6, "entropy_bound": 2.0, "confidence_threshold": 1.5},
    {"max_denoising_steps": 9, "t_min": 0.1, "t_max": 0.3, "stability_threshold": 0, "confidence_threshold": 0.8},
    {"max_denoising_steps": 1},
]


@dataclass(frozen=True)
class Setup:
    network: Any
    runner: Runner
    pattern: AttentionPattern

    def answer(self, *specs: Spec, ends: Sequence[int] = ENDS, **options: Any) -> list[Answer]:
        limits = options.pop("limits", LIMITS)
        vocabulary = Vocabulary([f"w{token}" for token in range(VOCABULARY)], MASK, ends)
        return run(self.runner, vocabulary, specs, limits, pattern=self.pattern, **options)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    network = published_gemma(feedback=0.1)
    directory = write_gemma(tmp_path_factory.mktemp("gemma"), network)
    return Setup(network, gemma_runner(directory), read_config(directory).pattern)


def generation() -> Any:
    """transformers' code, imported where it is needed, since it takes two seconds."""
    return import_module("transformers.models.diffusion_gemma.generation_diffusion_gemma")


def prompt(size: int) -> list[int]:
    return np.random.default_rng(size).integers(10, VOCABULARY, size).tolist()


def spec(size: int, max_tokens: int = 3 * CANVAS, **more: Any) -> Spec:
    sampling = Sampling(temperature=more.pop("temperature", 0.0), seed=more.pop("seed", 0))
    return Spec(prompt(size), max_tokens, "renoise", sampling=sampling, **more)


class OurDraws:
    """Stands for torch's draws in one call of `generate`: by seed, position, step, and what they are for."""

    def __init__(self, seed: int, temperature: float, start: int) -> None:
        self._seed, self._temperature, self._start = seed, temperature, start
        self._steps = self._calls = 0  # of all canvases; of the canvas in work
        self._drawn = False

    def random_canvas(self) -> Tensor:
        first = not self._drawn
        if first and self._calls:  # the canvas before is done
            self._start, self._calls = self._start + CANVAS, 0
        step, purpose = (self._steps, INITIAL) if first else (self._steps - 1, RENOISED)
        self._calls, self._drawn = self._calls + 1, False
        positions = np.arange(self._start, self._start + CANVAS)
        return torch.from_numpy(random_tokens(self._seed, positions, step, purpose, VOCABULARY)).long()[None]

    def multinomial(self, shares: Tensor, num_samples: int) -> Tensor:
        step, self._steps, self._drawn = self._steps, self._steps + 1, True
        if not self._temperature:
            return shares.argmax(-1, keepdim=True)
        count, tensor = len(shares), torch.zeros
        draws = Draws(
            tensor(count), tensor(count), tensor(count), tensor(count), tensor(count).long() + self._seed,
            torch.arange(self._start, self._start + count), tensor(count).long() + step,
        )  # fmt: skip
        return (shares.log() / self._temperature + token_noise(draws, VOCABULARY)).argmax(-1, keepdim=True)


def published(
    setup: Setup, spec: Spec, monkeypatch: pytest.MonkeyPatch, ends: Sequence[int] = ENDS
) -> tuple[list[int], int]:
    """The tokens of transformers' answer up to its end, and its decoder's forwards."""
    said = {"max_denoising_steps": 48, "t_min": 0.4, "t_max": 0.8, "stability_threshold": 1}
    said |= {"confidence_threshold": 0.005, "entropy_bound": 0.1} | dict(spec.params)
    bound = generation().EntropyBoundSamplerConfig(float(said.pop("entropy_bound")))
    config = generation().DiffusionGemmaGenerationConfig(
        **said, sampler_config=bound, max_new_tokens=spec.max_tokens, eos_token_id=list(ends), pad_token_id=0
    )
    draws = OurDraws(spec.sampling.seed, spec.sampling.temperature, len(spec.prompt))
    forwards = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal forwards
        forwards += 1
        return network(*args, **kwargs)

    network = setup.network.forward
    with monkeypatch.context() as patch, torch.inference_mode():
        patch.setattr(generation().EntropyBoundSampler, "initialize_canvas", lambda *_, **__: draws.random_canvas())
        patch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: None)  # imports a compiler
        patch.setattr(torch, "multinomial", draws.multinomial)
        patch.setattr(setup.network, "forward", counted)
        found = setup.network.generate(torch.tensor([spec.prompt]), generation_config=config).sequences[0]
    tokens = found[len(spec.prompt) :][: spec.max_tokens].tolist()
    end = next((at for at, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[:end], forwards


@pytest.mark.parametrize(
    ("params", "temperature", "seed"),
    [(params, *drawn) for params, drawn in crossed(SAMPLERS, ((0.5, -(2**40)), (0.0, 0), (1.0, 7)))],
    ids=str,
)
def test_tokens_and_forwards_are_those_of_transformers(
    setup: Setup, params: dict[str, Any], temperature: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For prompts shorter and longer than the window, with end tokens that random weights seldom give."""
    steps = set()
    for size in part((3, 20), 2, seed=str(params)) if params else (9,):
        length = (3 if params or ALL else 2) * CANVAS - 1  # a canvas of the published values takes all of 48 steps
        given = spec(size, length, params=params, temperature=temperature, seed=seed)
        want, forwards = published(setup, given, monkeypatch)
        (got,) = setup.answer(given)
        assert got.streamed == want
        assert got.steps == forwards
        steps.add(forwards)
    assert steps


def test_an_end_token_cuts_its_canvas_and_ends_the_answer(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    given = spec(9, 4 * CANVAS, params=SAMPLERS[1])
    (whole,) = setup.answer(given, ends=())
    assert whole.outcome is Outcome.LENGTH
    assert len(whole.streamed) == 4 * CANVAS
    ends = [whole.streamed[CANVAS + 1]]
    first = whole.streamed.index(ends[0])
    (cut,) = setup.answer(given, ends=ends)
    assert (cut.outcome, cut.streamed) == (Outcome.STOP, whole.streamed[:first])
    assert cut.steps < whole.steps
    assert published(setup, given, monkeypatch, ends) == (cut.streamed, cut.steps)
    ignoring = replace(given, preferences=Preferences(ignore_end=True))
    (on,) = setup.answer(ignoring, ends=ends)
    assert on.outcome is Outcome.LENGTH
    assert ends[0] not in on.streamed


def crowd() -> list[Spec]:
    return [
        spec(20, params=SAMPLERS[1], temperature=1.0, seed=3),
        spec(20, params=SAMPLERS[2], temperature=1.0, seed=4),
        spec(3, 2, params=SAMPLERS[1]),
        spec(33, params=SAMPLERS[2]),
        spec(17, 5, params=SAMPLERS[1], temperature=0.7, seed=2**62),
        spec(16, params={**SAMPLERS[1], "max_denoising_steps": 3}, diffusing=True),
    ]


@pytest.fixture(scope="module")
def alone(setup: Setup) -> list[Answer]:
    return [setup.answer(each)[0] for each in crowd()]


@pytest.mark.parametrize(
    "change",
    [
        {},
        pytest.param({"arrive_every": 2}, marks=LONG),
        {"halving": TWO_IN_FLIGHT},
        pytest.param({"limits": replace(LIMITS, prefill_tokens=5)}, marks=LONG),
        {"limits": replace(LIMITS, prefix_sharing=True, prefill_tokens=16), "arrive_every": 1},
        pytest.param({"limits": replace(LIMITS, step_tokens=120)}, marks=LONG),
        {"limits": replace(LIMITS, step_tokens=4 * CANVAS, prefill_tokens=2 * CANVAS)},
    ],
    ids=["at once", "one by one", "two steps in flight", "in chunks", "shared pages", "small steps", "smaller steps"],
)
def test_answers_are_the_same_alone_and_batched_with_others(
    setup: Setup, alone: list[Answer], change: dict[str, Any]
) -> None:
    """Whatever else is in their steps, however long their prompts' chunks are, with pages of others and without."""
    got = setup.answer(*crowd(), **change)
    for one, other in zip(got, alone, strict=True):
        assert (one.streamed, one.steps, one.outcome) == (other.streamed, other.steps, other.outcome)
        assert all(map(np.array_equal, one.canvases, other.canvases))


def test_prompts_and_answers_share_pages(setup: Setup) -> None:
    """A second turn, whose prompt has the first one's answer in it, encodes only what is new, and is none other."""
    limits = replace(LIMITS, prefix_sharing=True)
    vocabulary = Vocabulary([f"w{token}" for token in range(VOCABULARY)], MASK, ())
    first = spec(20, 4 * CANVAS, params=SAMPLERS[1])
    scheduler = Scheduler(limits, vocabulary, pattern=setup.pattern)
    (first_answer,) = serve(scheduler, setup.runner, [first])
    second = replace(first, prompt=[*first.prompt, *first_answer.streamed, 50, 51])
    (again,) = serve(scheduler, setup.runner, [second], first=1)
    assert again.cached_tokens == 32  # whole pages, of 36 positions; those of the last canvas were never encoded
    assert again.streamed == setup.answer(second, ends=())[0].streamed


def test_a_diffusing_request_shows_the_canvas_that_would_come(setup: Setup) -> None:
    (got,) = setup.answer(spec(9, 2 * CANVAS - 1, params=SAMPLERS[1], diffusing=True), ends=())
    assert [len(canvas) for canvas in got.canvases[:-1]] != []
    assert all(len(canvas) in (CANVAS, 2 * CANVAS - 1) for canvas in got.canvases)
    assert got.canvases[-1].tolist() == got.streamed
    changed = [tuple(canvas[:CANVAS]) for canvas in got.canvases]
    assert len(set(changed)) > 1


def test_the_last_canvas_ends_with_the_context(setup: Setup) -> None:
    limits = replace(LIMITS, max_model_len=27, pages=4)
    (got,) = setup.answer(spec(20, 7, params=SAMPLERS[1]), ends=(), limits=limits)
    assert len(got.streamed) == 7


def test_pages_and_slots_come_back_when_a_client_leaves(setup: Setup) -> None:
    vocabulary = Vocabulary([f"w{token}" for token in range(VOCABULARY)], MASK, ())
    scheduler = Scheduler(LIMITS, vocabulary, pattern=setup.pattern)
    left, stays = serve(scheduler, setup.runner, [spec(9), spec(20, params=SAMPLERS[1])], leave_after={0: 3})
    assert left.outcome is Outcome.ABORTED
    assert stays.outcome is Outcome.LENGTH
    assert scheduler.load().pages_used == 0


def test_a_bias_changes_logits_before_their_temperature(setup: Setup) -> None:
    plain = spec(9, CANVAS, params=SAMPLERS[1])
    (want,) = setup.answer(plain, ends=())
    banned = want.streamed[0]
    (got,) = setup.answer(replace(plain, preferences=Preferences(bias={banned: -np.inf})), ends=())
    assert banned not in got.streamed
    (only,) = setup.answer(replace(plain, preferences=Preferences(bias={77: 1000.0})), ends=())
    assert set(only.streamed) == {77}


def entropies_of(bound: float) -> Callable[[Any], list[bool]]:
    from asynclane.scheduler.decoding.registry import Denoiser

    denoiser = Denoiser(48, bound, 0.4, 0.8, 1, 0.005)
    return lambda given: denoiser.accepted(np.array(given, np.float32)).tolist()


def test_positions_are_accepted_as_transformers_does() -> None:
    drawn, theirs = np.random.default_rng(0), generation()
    for bound in (0.01, 0.1, 3.0):
        accepted = entropies_of(bound)
        for _ in range(20):
            logits = torch.from_numpy(drawn.normal(0, drawn.uniform(1, 20), (1, 16, 40)).astype(np.float32))
            sampler = theirs.EntropyBoundSampler(theirs.EntropyBoundSamplerConfig(bound), 16, 40, 48)
            sampler.accept_canvas(torch.zeros(1, 16), torch.ones(1, 16), logits, 3)
            entropies = torch.distributions.Categorical(logits=logits).entropy()[0]
            assert accepted(entropies.numpy()) == sampler.accepted_token_mask[0].tolist()
    assert entropies_of(0.1)([0.5, 0.2, 0.9]) == [False, True, False]  # the first always is
    assert entropies_of(0.2)([0.5, 0.2, 0.9]) == [True, True, False]  # the largest does not count


def test_random_tokens_are_uniform_and_follow_from_their_key_alone() -> None:
    positions = np.arange(50_000)
    found = random_tokens(3, positions, 4, INITIAL, 10)
    assert found.min() == 0
    assert np.all(np.abs(np.bincount(found, minlength=10) - 5000) < 300)
    assert np.array_equal(found[700:710], random_tokens(3, positions[700:710], 4, INITIAL, 10))
    for other in ((4, 4, INITIAL), (3, 5, INITIAL), (3, 4, RENOISED), (3 + 2**32, 4, INITIAL)):
        same = random_tokens(other[0], positions, other[1], other[2], 10) == found
        assert abs(same.mean() - 0.1) < 0.01
