"""Caches that leave out positions between others: each is its published method, and computes less."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from asynclane.models.exec.pack import pack_into
from asynclane.models.exec.runner import Runner
from asynclane.models.exec.shapes import ShapeSet
from asynclane.models.numerics import Numerics
from asynclane.scheduler import AttentionPattern, ParamError, resolve
from asynclane.scheduler.contract import GREEDY, DeviceCommitRule, Placement, Row, Span, StepPlan
from asynclane.scheduler.decoding.cache import partial

from ..support.driver import Spec, run
from ..support.fakes import MASK, vocabulary
from ..support.golden import WHOLE
from ..support.small_network import CONFIG, small_runner

CACHES = ("d2", "delayed", "interval", "window")
LENGTH, BLOCK = 24, 8
PROMPTS = ([5, 9, 3, 6], [7], [3, 3, 8, 10, 4, 2, 2, 9, 12, 11, 5])
NOTHING = DeviceCommitRule(0, math.inf)


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
    """dKV-Cache: a step computes the positions that were open when the last one began."""
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
    """Window-Diffusion, except that all positions before the end of its window are seen."""
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
    """As published: no position between computed ones is computed."""
    monkeypatch.setattr(partial, "BRIDGE", 1)


def answers(runner: Runner, decoder: str, **params: object) -> list[list[int]]:
    specs = [Spec(prompt, LENGTH, decoder, WHOLE | params) for prompt in PROMPTS]
    return [sequence.canvas.tolist() for sequence in run(runner, vocabulary(), specs)]


@pytest.mark.usefixtures("unbridged")
@pytest.mark.parametrize("reload_every", [1, 3, 8])
def test_a_token_is_cached_one_step_after_it_committed(small: Runner, reload_every: int) -> None:
    got = answers(small, "llada", block_length=BLOCK, cache="delayed", reload_every=reload_every)
    assert got == [delayed(small, prompt, reload_every) for prompt in PROMPTS]


def test_reloading_in_every_step_is_no_cache(small: Runner) -> None:
    for decoder, params in (("llada", {"block_length": BLOCK}), ("fast-dllm", {"threshold": 0.3}), ("dream", {})):
        plain = answers(small, decoder, cache="none", **params)
        assert answers(small, decoder, cache="delayed", reload_every=1, **params) == plain
        assert answers(small, decoder, cache="window", cycle=1, **params) == plain
        assert answers(small, decoder, cache="interval", prompt_every=1, **params) == plain


@pytest.mark.usefixtures("unbridged")
@pytest.mark.parametrize(("cycle", "window", "active"), [(6, 8, 3), (32, 64, 16), (5, 4, 4)])
def test_a_window_slides_over_the_first_open_positions(small: Runner, cycle: int, window: int, active: int) -> None:
    got = answers(small, "window", cycle=cycle, window_tokens=window, active_tokens=active)
    assert got == [window_diffusion(small, prompt, cycle, window, active) for prompt in PROMPTS]


def test_a_window_diffusion_of_full_passes_is_llada_with_one_block(small: Runner) -> None:
    for params in ({}, {"steps": 7}):
        one_block = answers(small, "llada", block_length=LENGTH, **params)
        assert answers(small, "window", cycle=1, **params) == one_block


def test_several_rows_of_a_request_compute_what_one_would(small: Runner) -> None:
    tokens = np.array([5, 9, 3, 6, *[MASK] * 20], np.int32)
    placement = Placement(0, tokens, tuple(range(9)))
    bounds = [(0, 7), (7, 8), (8, 19), (19, 24)]

    def rows(bounds: list[tuple[int, int]]) -> StepPlan:
        return StepPlan((placement,), tuple(Row(0, a, b, 24, (Span(a, b, NOTHING),), GREEDY, 0) for a, b in bounds))

    torch.testing.assert_close(small.logits(rows(bounds)), small.logits(rows([(0, 24)])))


def test_a_lane_in_several_rows_commits_as_one(small: Runner) -> None:
    """The best position of the lane commits, not the best of each row."""
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
    shapes = ShapeSet(CONFIG, Numerics(torch.float32), 2, ())
    rows = tuple(Row(0, a, a + 2, 60, (Span(a, a + 2, NOTHING, joined=a > 0),), GREEDY, 0) for a in range(0, 60, 6))
    shape = shapes.fit(StepPlan((), rows)).padding.shape
    pack_into(np.empty(shape.words, np.int32), StepPlan((), rows), shape)
    assert len(rows) <= shape.rows < 2 * len(rows)


@pytest.mark.parametrize("cache", CACHES)
def test_a_block_causal_network_refuses_keys_that_are_not_exact(cache: str) -> None:
    with pytest.raises(ParamError, match=f"{cache}.*use 'prefix', which is exact") as refused:
        resolve("fast-dllm", {"cache": cache}, 64, AttentionPattern(block_size=16))
    assert refused.value.param == "cache"


def test_less_is_computed(small: Runner) -> None:
    """In a step, compared with no cache."""
    for cache in CACHES:
        specs = [Spec(PROMPTS[2], 64, "llada", {"cache": kind, "block_length": 16}) for kind in ("none", cache)]
        whole, part = run(small, vocabulary(), specs)
        assert part.computed_tokens / part.steps < 0.8 * whole.computed_tokens / whole.steps
