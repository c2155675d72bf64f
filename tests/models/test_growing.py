"""Blocks that grow: their borders and forwards are those of the authors' arithmetic, their tokens the method's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asynclane.models.exec.runner import Runner
from asynclane.scheduler import AttentionPattern, ParamError, Scheduler, Vocabulary, resolve
from asynclane.scheduler.decoding.vocabulary import END

from ..support.driver import LIMITS, Spec, full_logits, run
from ..support.fakes import add
from ..support.golden import PROMPTS, WHOLE
from ..support.scale import part

# For a canvas and a number of blocks: the block of each forward, and how many positions it commits.
FORWARDS = {
    (128, 4): [((0, 15), 1), ((0, 15), 2), ((0, 15), 4), ((0, 15), 8), ((15, 31), 16), ((31, 63), 32), ((63, 128), 65)],
    (64, 4): [((0, 7), 1), ((0, 7), 2), ((0, 7), 4), ((7, 15), 8), ((15, 31), 16), ((31, 64), 33)],
    (64, 6): [((0, 1), 1), ((1, 3), 2), ((3, 7), 4), ((7, 15), 8), ((15, 31), 16), ((31, 64), 33)],
    (64, 1): [((0, 64), 1), ((0, 64), 2), ((0, 64), 4), ((0, 64), 8), ((0, 64), 16), ((0, 64), 33)],
    (50, 2): [((0, 15), 1), ((0, 15), 2), ((0, 15), 4), ((0, 15), 8), ((15, 50), 35)],
}


@pytest.mark.parametrize(("length", "count"), part(FORWARDS, 2))
def test_blocks_and_forwards_are_the_authors(length: int, count: int, runner: Runner, vocabulary: Vocabulary) -> None:
    """S forwards commit 1, 2, 4, ... of 2^S positions, and the rest; the last `count` - 1 have a block each."""
    scheduler = Scheduler(LIMITS, vocabulary)
    spec = Spec(PROMPTS[0], length, "ass", {"block_count": count, **WHOLE})
    sequence = add(scheduler, spec.request(0, scheduler.pattern))
    forwards = []
    while (plan := scheduler.plan()) is not None:
        (lane,), before = sequence.tree.live, sequence.tree.masks(0, length)
        scheduler.commit(runner.execute(plan))
        forwards.append(((lane.start, lane.end), before - sequence.tree.masks(0, length)))
    assert forwards == FORWARDS[length, count]


@pytest.mark.parametrize("count", [1, 4])
def test_tokens_are_those_of_the_method_written_out(count: int, runner: Runner, vocabulary: Vocabulary) -> None:
    """An end token counts 0.2 of its probability, and (2^(i+1) - 1) / 2^S of the rest more in forward i."""
    ends = torch.from_numpy((vocabulary.classes & END) != 0)
    for prompt in PROMPTS[:1]:
        tokens = np.array([*prompt, *[vocabulary.mask_id] * 64], np.int32)
        for number, ((_, end), commits) in enumerate(FORWARDS[64, count]):
            chance, best = full_logits(runner, tokens, vocabulary.mask_id).softmax(-1).max(-1)
            weight = 0.2 + 0.8 * (2 ** (number + 1) - 1) / 2**6
            score = chance * torch.where(ends[best], weight, 1.0)
            score[torch.from_numpy(tokens != vocabulary.mask_id)] = -1.0
            chosen = score[: len(prompt) + end].argsort(descending=True, stable=True)[:commits]
            tokens[chosen.numpy()] = best[chosen].numpy()
        spec = Spec(prompt, 64, "ass", {"block_count": count, "end_weight": 0.2, **WHOLE})
        assert run(runner, vocabulary, [spec])[0].canvas.tolist() == tokens[len(prompt) :].tolist()


def test_more_blocks_than_forwards_and_other_models_are_refused() -> None:
    with pytest.raises(
        ParamError, match=r"block_count 7 exceeds the 6 forwards of a canvas of 64 \(max_tokens\)"
    ) as refused:
        resolve("ass", {"block_count": 7}, 64)
    assert refused.value.param == "block_count"
    with pytest.raises(ParamError, match="no position of this model sees"):
        resolve("ass", {"block_count": 2}, 64, AttentionPattern(block_size=16))
    with pytest.raises(ParamError, match="'block_count'"):
        resolve("fast-dllm", {"rule": "ass", "block_count": 2}, 64)
