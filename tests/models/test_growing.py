"""Blocks that grow: their borders and calls are those of the authors' arithmetic, and their tokens the method's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asynclane.models.exec.runner import Runner
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
from asynclane.scheduler.decoding.params import ParamError
from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.decoding.vocabulary import END, Vocabulary
from asynclane.scheduler.request import Request
from asynclane.scheduler.scheduler import Scheduler

from ..support.driver import LIMITS, Ask, run
from ..support.fakes import add
from ..support.scale import part
from .test_golden import GOLDEN

PROMPTS = [prompt["prompt_ids"] for prompt in GOLDEN["prompts"][:4]]
SERIAL = {"early_stop": False}

# Of a canvas and a count of blocks, the block of each call and how many positions it commits.
CALLS = {
    (128, 4): [((0, 15), 1), ((0, 15), 2), ((0, 15), 4), ((0, 15), 8), ((15, 31), 16), ((31, 63), 32), ((63, 128), 65)],
    (64, 4): [((0, 7), 1), ((0, 7), 2), ((0, 7), 4), ((7, 15), 8), ((15, 31), 16), ((31, 64), 33)],
    (64, 6): [((0, 1), 1), ((1, 3), 2), ((3, 7), 4), ((7, 15), 8), ((15, 31), 16), ((31, 64), 33)],
    (64, 1): [((0, 64), 1), ((0, 64), 2), ((0, 64), 4), ((0, 64), 8), ((0, 64), 16), ((0, 64), 33)],
    (50, 2): [((0, 15), 1), ((0, 15), 2), ((0, 15), 4), ((0, 15), 8), ((15, 50), 35)],
}


@pytest.mark.parametrize(("length", "count"), CALLS)
def test_blocks_and_calls_are_the_authors(length: int, count: int, runner: Runner, vocabulary: Vocabulary) -> None:
    """Of 2^S positions S calls commit 1, 2, 4, ... and the rest; the last `count` - 1 of them have a block each."""
    decoder = resolve("ass", {"block_count": count, **SERIAL}, length)
    scheduler = Scheduler(LIMITS, vocabulary)
    sequence = add(scheduler, Request(0, np.array(PROMPTS[0], np.int32), length, decoder))
    calls = []
    while (plan := scheduler.plan()) is not None:
        (lane,), before = sequence.tree.live, sequence.tree.masks(0, length)
        scheduler.commit(runner.execute(plan))
        calls.append(((lane.start, lane.end), before - sequence.tree.masks(0, length)))
    assert calls == CALLS[length, count]


@pytest.mark.parametrize("count", [1, 4])
def test_tokens_are_those_of_the_method_written_out(count: int, runner: Runner, vocabulary: Vocabulary) -> None:
    """An end token counts 0.2 of its probability, and (2^(i+1) - 1) / 2^S of the rest more in call i of the canvas."""
    ends = torch.from_numpy((vocabulary.classes & END) != 0)
    for prompt in PROMPTS[:2]:
        tokens = np.array([*prompt, *[vocabulary.mask_id] * 64], np.int32)
        for call, ((_, end), commits) in enumerate(CALLS[64, count]):
            whole = (Span(0, len(tokens), DeviceCommitRule(0, 2.0)),)
            plan = StepPlan(
                (Placement(0, tokens, tuple(range(-(-len(tokens) // LIMITS.page_size)))),),
                (Row(0, 0, len(tokens), len(tokens), whole, GREEDY, 0),),
            )
            logits = runner.logits(plan).double()
            logits[:, vocabulary.mask_id] = -torch.inf
            chance, best = logits.softmax(-1).max(-1)
            weight = 0.2 + 0.8 * (2 ** (call + 1) - 1) / 2**6
            score = chance * torch.where(ends[best], weight, 1.0)
            score[torch.from_numpy(tokens != vocabulary.mask_id)] = -1.0
            chosen = score[: len(prompt) + end].argsort(descending=True, stable=True)[:commits]
            tokens[chosen.numpy()] = best[chosen].numpy()
        ask = Ask(prompt, 64, "ass", {"block_count": count, "end_weight": 0.2, **SERIAL})
        assert run(runner, vocabulary, [ask])[0].canvas.tolist() == tokens[len(prompt) :].tolist()


def test_an_answer_is_the_same_alone_and_in_a_crowd(runner: Runner, vocabulary: Vocabulary) -> None:
    asks = [
        Ask(PROMPTS[n % 4], length, "ass", {"block_count": count, "cache": cache}, Sampling(n % 2, seed=n), ranks=2)
        for n, (length, count, cache) in enumerate(
            (length, count, cache) for length, count in CALLS for cache in ("none", "prefix", "dual")
        )
    ]
    crowd = run(runner, vocabulary, [*asks, Ask(PROMPTS[0], 40)])
    for ask, sequence in part(zip(asks, crowd, strict=False), 5):
        (alone,) = run(runner, vocabulary, [ask])
        assert (alone.canvas.tolist(), alone.steps) == (sequence.canvas.tolist(), sequence.steps), ask


def test_more_blocks_than_calls_and_other_models_are_refused() -> None:
    with pytest.raises(
        ParamError, match=r"block_count 7 exceeds the 6 forwards of a canvas of 64 \(max_tokens\)"
    ) as no:
        resolve("ass", {"block_count": 7}, 64)
    assert no.value.param == "block_count"
    with pytest.raises(ParamError, match="no position of this model sees past its block"):
        resolve("ass", {"block_count": 2}, 64, AttentionPattern(block_size=16))
    with pytest.raises(ParamError, match="no knob 'block_count'"):
        resolve("fast-dllm", {"rule": "ass", "block_count": 2}, 64)
