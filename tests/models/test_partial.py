"""Caches that leave out positions between others: each against its method written out plainly, and how all behave."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from asynclane.models.exec.graphs import StepGraphs
from asynclane.models.exec.pack import pack_into
from asynclane.models.exec.runner import Runner
from asynclane.models.numerics import Numerics
from asynclane.scheduler.contract import (
    GREEDY,
    DeviceCommitRule,
    Placement,
    Row,
    Sampling,
    Span,
    StepPlan,
)
from asynclane.scheduler.decoding.attention_pattern import AttentionPattern
from asynclane.scheduler.decoding.cache import partial
from asynclane.scheduler.decoding.params import ParamError
from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.decoding.vocabulary import Vocabulary

from ..support.driver import LIMITS, Ask, run
from ..support.fakes import MASK, vocabulary
from ..support.scale import part
from ..support.small_network import CONFIG, small_runner
from .test_golden import GOLDEN

CACHES = ("d2", "delayed", "interval", "window")
LENGTH, BLOCK = 24, 8
PROMPTS = ([5, 9, 3, 6], [7], [3, 3, 8, 10, 4, 2, 2, 9, 12, 11, 5])
PUBLISHED = {"early_stop": False}
NOTHING = DeviceCommitRule(0, math.inf)
CROWD = [prompt["prompt_ids"] for prompt in GOLDEN["prompts"][:4]]


class Plain:
    """A prompt and a canvas of masks, of which some positions are computed at a time."""

    def __init__(self, runner: Runner, prompt: list[int]) -> None:
        self.runner, self.begin = runner, len(prompt)
        self.x = torch.tensor([*prompt, *[MASK] * LENGTH])

    @property
    def masks(self) -> Tensor:
        return self.x == MASK

    def commit(self, computed: Tensor, seen: int, eligible: Tensor) -> None:
        """Computes positions where `computed` [all], which see those before `seen`; the most confident mask where
        `eligible` commits."""
        at = computed.nonzero()[:, 0].numpy()
        cuts = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)
        rows = []
        for run_ in cuts:
            start, end = int(run_[0]), int(run_[-1]) + 1
            rows.append(Row(0, start, end, max(seen, end), (Span(start, end, NOTHING),), GREEDY, 0))
        plan = StepPlan((Placement(0, self.x.int().numpy(), tuple(range(9))),), tuple(rows))
        commit_probability = self.runner.logits(plan).double()
        commit_probability[:, MASK] = -math.inf
        best = commit_probability.softmax(-1).max(-1)
        allowed = (self.masks & eligible)[at]
        choice = int(best.values.masked_fill(~allowed, -1).argmax())
        self.x[at[choice]] = best.indices[choice]


def delayed(runner: Runner, prompt: list[int], reload_every: int) -> list[int]:
    """dKV-Cache: what was open when the last step began."""
    plain = Plain(runner, prompt)
    everything = torch.ones_like(plain.masks)
    for start in range(len(prompt), len(plain.x), BLOCK):
        block, step, computed = torch.zeros_like(everything), 0, everything
        block[start : start + BLOCK] = True
        while (plain.masks & block).any():
            before = plain.masks
            plain.commit(everything if step % reload_every == 0 else computed, len(plain.x), block)
            computed, step = before, step + 1
    return plain.x[len(prompt) :].tolist()


def window_diffusion(runner: Runner, prompt: list[int], cycle: int, window: int, active: int) -> list[int]:
    """Window-Diffusion, but that nothing decoded behind its window is seen apart from what lies between."""
    plain, step, last = Plain(runner, prompt), 0, 0
    everything = fresh = torch.ones_like(plain.masks)
    while plain.masks.any():
        before = plain.masks
        if step % cycle == 0:
            plain.commit(everything, len(plain.x), everything)
            fresh = before & ~plain.masks
            last = int(torch.cat((plain.masks.nonzero()[:window], (~plain.masks).nonzero())).max())
        else:
            first = torch.zeros_like(before)
            first[before.nonzero()[:active, 0]] = True
            plain.commit(first | fresh, last + 1, everything)
            fresh = (before & ~plain.masks) | (fresh if step % cycle > 1 else False)
        step += 1
    return plain.x[len(prompt) :].tolist()


@pytest.fixture(scope="module")
def small() -> Runner:
    return small_runner()


@pytest.fixture
def unbridged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As published: positions between those computed are not."""
    monkeypatch.setattr(partial, "BRIDGE", 1)


def answers(runner: Runner, decoder: str, **knobs: object) -> list[list[int]]:
    asks = [Ask(prompt, LENGTH, decoder, PUBLISHED | knobs) for prompt in PROMPTS]
    return [sequence.canvas.tolist() for sequence in run(runner, vocabulary(), asks)]


@pytest.mark.usefixtures("unbridged")
@pytest.mark.parametrize("reload_every", [1, 3, 8])
def test_a_token_is_cached_one_step_after_it_committed(small: Runner, reload_every: int) -> None:
    got = answers(small, "llada", block_length=BLOCK, cache="delayed", reload_every=reload_every)
    assert got == [delayed(small, prompt, reload_every) for prompt in PROMPTS]


def test_reloading_in_every_step_is_no_cache(small: Runner) -> None:
    for decoder, knobs in (("llada", {"block_length": BLOCK}), ("fast-dllm", {"threshold": 0.3}), ("dream", {})):
        plain = answers(small, decoder, cache="none", **knobs)
        assert answers(small, decoder, cache="delayed", reload_every=1, **knobs) == plain
        assert answers(small, decoder, cache="window", cycle=1, **knobs) == plain
        assert answers(small, decoder, cache="interval", prompt_every=1, **knobs) == plain


@pytest.mark.usefixtures("unbridged")
@pytest.mark.parametrize(("cycle", "window", "active"), [(6, 8, 3), (32, 64, 16), (5, 4, 4)])
def test_a_window_slides_over_the_first_open_positions(small: Runner, cycle: int, window: int, active: int) -> None:
    got = answers(small, "window", cycle=cycle, window_tokens=window, active_tokens=active)
    assert got == [window_diffusion(small, prompt, cycle, window, active) for prompt in PROMPTS]


def test_a_window_diffusion_of_full_passes_is_llada_with_one_block(small: Runner) -> None:
    for knobs in ({}, {"steps": 7}):
        one_block = answers(small, "llada", block_length=LENGTH, **knobs)
        assert answers(small, "window", cycle=1, **knobs) == one_block


def test_several_rows_of_a_request_compute_what_one_would(small: Runner) -> None:
    tokens = np.array([5, 9, 3, 6, *[MASK] * 20], np.int32)
    placement = Placement(0, tokens, tuple(range(9)))
    bounds = [(0, 7), (7, 8), (8, 19), (19, 24)]

    def rows(bounds: list[tuple[int, int]]) -> StepPlan:
        return StepPlan((placement,), tuple(Row(0, a, b, 24, (Span(a, b, NOTHING),), GREEDY, 0) for a, b in bounds))

    torch.testing.assert_close(small.logits(rows(bounds)), small.logits(rows([(0, 24)])))


def test_a_lane_in_several_rows_commits_as_one(small: Runner) -> None:
    """Its best position does, not the best of each row."""
    sure = DeviceCommitRule(1, math.inf)
    placement = Placement(0, np.array(PROMPTS[0], np.int32), tuple(range(9)))
    rows = [
        Row(0, 0, 8, 24, (Span(4, 8, sure),), GREEDY, 0),
        Row(0, 8, 20, 24, (Span(8, 20, sure, joined=True),), GREEDY, 0),
    ]
    apart, whole = (
        small.execute(StepPlan((placement,), tuple(rows)))
        for rows in (rows, [Row(0, 0, 20, 24, (Span(4, 20, sure),), GREEDY, 0)])
    )
    assert (apart.tokens != MASK).sum() == 1
    assert apart.tokens.tolist() == whole.tokens.tolist()


def test_a_graphs_shape_has_room_for_more_rows_than_slots() -> None:
    graphs = StepGraphs(lambda batch: torch.zeros(0), CONFIG, Numerics(torch.float32), slots=2)
    rows = tuple(Row(0, a, a + 2, 60, (Span(a, a + 2, NOTHING, joined=a > 0),), GREEDY, 0) for a in range(0, 60, 6))
    shape = graphs.shape_for(StepPlan((), rows))
    pack_into(np.empty(shape.words, np.int32), StepPlan((), rows), shape)
    assert len(rows) <= shape.rows < 2 * len(rows)


def fitting(cache: str) -> list[tuple[str, dict[str, object]]]:
    return [
        ("llada", {"cache": cache, "block_length": 8}),
        ("fast-dllm", {"cache": cache, "threshold": 0.7}),
        ("fast-dllm", {"cache": cache, "factor": 1.0, "block_length": 16}),
        ("localleap", {"cache": cache}),
        ("asynclane", {"cache": cache}),
        ("asynclane", {"cache": cache, "rule": "localleap", "block_length": 12}),
        ("dream", {"cache": cache}),
    ]


def test_an_answer_is_the_same_alone_and_in_a_crowd(runner: Runner, vocabulary: Vocabulary) -> None:
    """Of 32 mixed requests, hot ones and such with log-probabilities among them."""
    kinds = [kind for kinds in zip(*map(fitting, CACHES), strict=True) for kind in kinds]
    kinds += [("window", {"cycle": cycle, "window_tokens": 12, "active_tokens": 4}) for cycle in (3, 6, 7, 32)]
    asks = [
        Ask(
            prompt=CROWD[n % 3] if n % 8 else [7],
            max_tokens=1 if n == 3 else 8 + n % 3 * 8,
            decoder=kinds[n][0],
            knobs=kinds[n][1],
            sampling=Sampling(1.0, seed=n) if n % 3 == 1 else GREEDY,
            ranks=2 if n % 4 == 2 else None,
        )
        for n in range(32)
    ]
    crowd = run(runner, vocabulary, asks)
    for number in part(range(1, 32), 5):
        (alone,) = run(runner, vocabulary, [asks[number]])
        assert alone.canvas.tolist() == crowd[number].canvas.tolist(), asks[number]
        assert alone.steps == crowd[number].steps
    assert not any((sequence.canvas[: sequence.sent] == vocabulary.mask_id).any() for sequence in crowd)


@pytest.mark.parametrize("cache", CACHES)
def test_a_shifted_network_answers_too(cache: str) -> None:
    """Each row with the position that predicts its first one."""
    shifted = small_runner(shift=1)
    asks = [Ask(prompt, LENGTH, *kind) for prompt in PROMPTS for kind in fitting(cache)]
    for sequence in run(shifted, vocabulary(), asks, LIMITS, pattern=AttentionPattern(logit_shift=1)):
        assert (sequence.canvas[: min(sequence.end_at, LENGTH)] != MASK).all()


@pytest.mark.parametrize("cache", CACHES)
def test_a_block_causal_network_refuses_keys_that_are_not_exact(cache: str) -> None:
    with pytest.raises(ParamError, match=f"{cache}.*use 'prefix', which is exact") as refused:
        resolve("fast-dllm", {"cache": cache}, 64, AttentionPattern(block_size=16))
    assert refused.value.param == "cache"


def test_less_is_computed(small: Runner) -> None:
    """Than without a cache, in a step."""
    for cache in CACHES:
        asks = [Ask(PROMPTS[2], 64, "llada", {"cache": kind, "block_length": 16}) for kind in ("none", cache)]
        whole, part = run(small, vocabulary(), asks)
        assert part.computed_tokens / part.steps < 0.8 * whole.computed_tokens / whole.steps
