"""A block-causal network: its caches are exact, prefixes are shared between requests, and no answer changes by it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from asynclane.scheduler import Sampling, Scheduler, Vocabulary

from ..support.cases import CHATS, TEXT, comparable, network
from ..support.driver import TWO_IN_FLIGHT, Answer, Spec, full_logits, serve
from ..support.golden import WHOLE
from ..support.scale import ALL, part

BLOCK = 16
LONG = (CHATS[3] * 20)[:400]
SDAR = network("tiny-sdar")

DECODERS: list[tuple[str, dict[str, Any]]] = [
    ("fast-dllm", {}),
    ("fast-dllm", {"factor": 1.0, "block_length": 32}),
    ("freedave", {"block_length": 32, "draft_steps": 2}),
    ("llada", {"steps": 8}),
    ("asynclane", {"cache": "prefix"}),
    ("asynclane", {"threshold": 0.5, "draft_threshold": 0.8, "max_lanes": 8}),
    ("asynclane", {"reuse": False, "siblings": "coupled"}),
    *[(decoder, WHOLE) for decoder in ("d2f", "d3llm", "slowfast")],
]


@pytest.mark.parametrize("decoder", part(DECODERS, 2), ids=str)
def test_answers_are_those_of_no_cache_to_the_bit(decoder: tuple[str, dict[str, Any]]) -> None:
    name, params = decoder
    uncached = {param: value for param, value in params.items() if param != "reuse"} | {"cache": "none"}
    for prompt in part((LONG[:60] + CHATS[1], CHATS[4]), 2):
        cached, computed = (SDAR.run([Spec(prompt, 30, name, chosen, ranks=2)])[0] for chosen in (params, uncached))
        assert cached.canvas.tolist() == computed.canvas.tolist()
        if params.get("reuse") is not False:  # one forward more, which shifts the numbers of the steps
            assert comparable(cached) | {"positions": 0} == comparable(computed) | {"positions": 0}
        assert cached.computed_tokens < computed.computed_tokens


def test_fast_dllm_is_the_published_sampler_of_block_diffusion() -> None:
    """Blocks in order; in each forward all that are sure enough commit, or else the best; the prompt's tail shares the
    first block (SDAR's `block_diffusion_generate` with `low_confidence_dynamic`)."""
    for prompt in CHATS[:2]:
        length = 3 * BLOCK - len(prompt) % BLOCK
        tokens = np.array([*prompt, *[TEXT.mask_id] * length], np.int32)
        forwards = 0
        for start in range(len(prompt) // BLOCK * BLOCK, len(tokens), BLOCK):
            block = tokens[start : start + BLOCK]
            while (block == TEXT.mask_id).any():
                logits = full_logits(SDAR.runner, tokens[: start + BLOCK], TEXT.mask_id)[start:]
                chance, best = logits.softmax(-1).max(-1)
                open_ = torch.from_numpy(block == TEXT.mask_id)
                commits = open_ & (chance >= 0.85)
                if not commits.any():
                    commits[torch.where(open_, chance, -1.0).argmax()] = True
                block[commits.numpy()] = best[commits].numpy()
                forwards += 1
        (ours,) = SDAR.run([Spec(prompt, length, "fast-dllm", {"threshold": 0.85, "early_stop": False})])
        assert ours.canvas.tolist() == tokens[len(prompt) :].tolist()
        assert ours.steps == forwards


def test_a_second_request_computes_none_of_a_prefix_of_400_tokens(vocabulary: Vocabulary) -> None:
    spec = Spec(LONG + CHATS[0], 32, "fast-dllm", ranks=2)
    first, second = after_each_other(vocabulary, replace(spec, prompt=LONG + CHATS[1]), spec)
    (alone,) = SDAR.run([spec])
    assert (first.cached_tokens, second.cached_tokens, alone.cached_tokens) == (0, 400, 0)
    assert alone.computed_tokens - second.computed_tokens == 400
    assert comparable(second) == comparable(alone)


def test_the_next_turn_of_a_conversation_starts_after_the_last_answer(vocabulary: Vocabulary) -> None:
    turn = Spec(LONG, 100, "fast-dllm", {"early_stop": False}, ranks=2)
    (first,) = SDAR.run([turn])
    following = Spec([*LONG, *first.canvas.tolist(), *CHATS[2]], 32, "fast-dllm", ranks=2)
    _, second = after_each_other(vocabulary, turn, following)
    assert second.cached_tokens == 400 + 100 // BLOCK * BLOCK
    assert comparable(second) == comparable(SDAR.run([following])[0])


def test_answers_are_the_same_whatever_the_size_of_chunks_of_the_prompt() -> None:
    cases = [(400 if ALL else 160, "fast-dllm"), (90, "asynclane"), (140, "asynclane"), (75, "fast-dllm")]
    specs = [
        Spec(LONG[:size], 24, decoder, sampling=Sampling(number % 2, seed=7), ranks=2, watched=number == 1)
        for number, (size, decoder) in enumerate(cases)
    ]
    whole = [comparable(SDAR.run([spec])[0]) for spec in specs]
    assert [comparable(SDAR.run([spec], replace(SDAR.limits, prefill_tokens=64))[0]) for spec in specs] == whole
    for sharing, size in part(itertools.product((True, False), (BLOCK, 64)), 4):
        limits = replace(SDAR.limits, prefix_sharing=sharing, prefill_tokens=size)
        for options in part(({}, {"halving": TWO_IN_FLIGHT, "arrive_every": 2}), 2):
            assert [comparable(answer) for answer in SDAR.run(specs, limits, **options)] == whole, (sharing, size)


def after_each_other(vocabulary: Vocabulary, *specs: Spec) -> list[Answer]:
    """The answers of one scheduler to requests of which each comes when the one before has ended."""
    scheduler = Scheduler(SDAR.limits, vocabulary, pattern=SDAR.pattern)
    return [serve(scheduler, SDAR.runner, [spec], first=number)[0] for number, spec in enumerate(specs)]
