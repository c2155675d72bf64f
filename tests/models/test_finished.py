"""d3LLM's cache, where blocks are kept some calls after they were finished: what it computes, and what an answer is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

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
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.scheduler.request import Request
from asynclane.scheduler.scheduler import Scheduler

from ..support.driver import LIMITS, Ask, run
from ..support.fakes import MASK, add
from ..support.fakes import vocabulary as words
from ..support.scale import part
from ..support.small_network import small_runner
from .test_golden import GOLDEN

LENGTH, BLOCK = 24, 8
PROMPTS = ([5, 9, 3, 6], [7], [3, 3, 8, 10, 4, 2, 2, 9, 12, 11, 5])
CHATS = [prompt["prompt_ids"] for prompt in GOLDEN["prompts"][:4]]
MANY = [prompt["prompt_ids"] for prompt in GOLDEN["prompts"]]
NEVER = 1_000_000
WHOLE = {"early_stop": False}


@dataclass(slots=True)
class Published:
    """The authors' bookkeeping: where each call begins to compute, of what it finds on the canvas."""

    delay: int
    interval: int
    ends: list[int]  # of the prompt and the blocks, absolute
    completed: dict[int, int] = field(default_factory=lambda: {0: 0})
    call: int = 0
    cached: int = 0

    def start(self, tokens: np.ndarray, mask: int) -> int:
        self.call += 1
        begin, ripe, waits = self.cached, None, False
        for number, end in enumerate(self.ends):
            if end <= begin:
                continue
            if (tokens[self.ends[number - 1] if number else 0 : end] == mask).any():
                break
            since = self.completed.setdefault(number, self.call)
            if self.call - since < self.delay:
                waits = True
                break
            ripe = end
        if ripe is not None:
            self.cached = ripe
            return begin
        return 0 if waits or self.call % self.interval == 0 else begin


@pytest.fixture(scope="module")
def small() -> Runner:
    return small_runner()


def written_out(runner: Runner, prompt: list[int], delay: int, interval: int) -> list[int]:
    """One token a call, in blocks; what a call does not compute is as the last one to compute it has left it."""
    x = np.array([*prompt, *[MASK] * LENGTH], np.int32)
    ends = list(range(len(prompt), len(x) + 1, BLOCK))
    published = Published(delay, interval, ends)
    for end in ends[1:]:
        while (x[:end] == MASK).any():
            start = published.start(x, MASK)
            row = Row(0, start, len(x), len(x), (Span(start, len(x), DeviceCommitRule(0, math.inf)),), GREEDY, 0)
            logits = runner.logits(StepPlan((Placement(0, x, tuple(range(9))),), (row,))).double()
            logits[:, MASK] = -math.inf
            chance, best = logits.softmax(-1).max(-1)
            chance[torch.from_numpy(x[start:] != MASK)] = -1.0
            chosen = int(chance[: end - start].argmax())
            x[start + chosen] = int(best[chosen])
    return x[len(prompt) :].tolist()


@pytest.mark.parametrize(("delay", "interval"), [(0, NEVER), (1, NEVER), (2, NEVER), (5, 4), (0, 3), (1, 1)])
def test_answers_are_those_of_the_method_written_out(delay: int, interval: int, small: Runner) -> None:
    knobs = {"block_length": BLOCK, "cache": "finished", "cache_delay": delay, "refresh_interval": interval, **WHOLE}
    got = run(small, words(), [Ask(prompt, LENGTH, "llada", knobs) for prompt in PROMPTS])
    assert [s.canvas.tolist() for s in got] == [written_out(small, prompt, delay, interval) for prompt in PROMPTS]


@pytest.mark.parametrize("decoder", ["d3llm", "d2f"])
@pytest.mark.parametrize(("delay", "interval"), [(0, NEVER), (1, NEVER), (2, 7)])
def test_several_blocks_at_once_are_computed_as_published(
    decoder: str, delay: int, interval: int, runner: Runner, vocabulary: Vocabulary
) -> None:
    """Until two more are finished in one call, which then wait together."""
    cached = 0
    for prompt in part(MANY, 2):
        knobs = {"cache": "finished", "cache_delay": delay, "refresh_interval": interval, "block_length": 16, **WHOLE}
        scheduler = Scheduler(LIMITS, vocabulary)
        tokens = np.array(prompt, np.int32)
        sequence = add(scheduler, Request(0, tokens, 96, resolve(decoder, knobs, 96)))
        published = Published(delay, interval, list(range(len(prompt), len(prompt) + 97, 16)))
        while (plan := scheduler.plan()) is not None:
            first = sequence.tree.live[0].start
            wanted = published.start(np.concatenate((tokens, sequence.canvas)), vocabulary.mask_id)
            assert (plan.rows[0].start, plan.rows[0].end) == (wanted, len(prompt) + 96)
            scheduler.commit(runner.execute(plan))
            if delay and sequence.tree.live and sequence.tree.live[0].start > first + 16:
                break
        cached += published.cached > len(prompt)
    assert cached > 2


def test_a_delay_that_no_answer_lasts_is_no_cache(runner: Runner, vocabulary: Vocabulary) -> None:
    for decoder in ("d3llm", "d2f", "llada", "asynclane"):
        plain, waiting = (
            run(runner, vocabulary, [Ask(prompt, 24, decoder, knobs, ranks=2) for prompt in part(CHATS[:2], 2)])
            for knobs in ({"cache": "none"}, {"cache": "finished", "cache_delay": NEVER})
        )
        for left, right in zip(plain, waiting, strict=True):
            assert left.canvas.tolist() == right.canvas.tolist()
            assert (left.steps, left.computed_tokens, left.refreshes) == (
                right.steps,
                right.computed_tokens,
                right.refreshes,
            )


def test_the_sooner_blocks_are_cached_the_less_is_computed(runner: Runner, vocabulary: Vocabulary) -> None:
    def share(delay: int) -> float:
        knobs = {"cache": "finished", "cache_delay": delay, **WHOLE}
        answers = run(runner, vocabulary, [Ask(prompt, 96, "d3llm", knobs) for prompt in CHATS])
        return sum(answer.computed_tokens for answer in answers) / sum(answer.steps for answer in answers)

    assert share(0) < share(1) < share(NEVER)


def test_an_answer_is_the_same_alone_and_in_a_crowd(runner: Runner, vocabulary: Vocabulary) -> None:
    kinds = ("d3llm", "d2f", "fast-dllm", "asynclane", "lopa", "slowfast")
    asks = [
        Ask(
            prompt=CHATS[n % 4] if n % 8 else [7],
            max_tokens=(1, 33, 64)[n % 3] if n > 3 else 24,
            decoder=kinds[n % 6],
            knobs={"cache": "finished", "cache_delay": n % 4, "refresh_interval": 3 + n, **adapted(kinds[n % 6])},
            sampling=Sampling(1.0, seed=n) if n % 5 == 1 else GREEDY,
        )
        for n in range(24)
    ]
    for ask, sequence in part(zip(asks, run(runner, vocabulary, asks), strict=True), 7):
        (alone,) = run(runner, vocabulary, [ask])
        assert (alone.canvas.tolist(), alone.steps) == (sequence.canvas.tolist(), sequence.steps), ask
        assert vocabulary.mask_id not in sequence.canvas[: sequence.sent]


def adapted(decoder: str) -> dict[str, object]:
    """A look-ahead of the shortest canvas."""
    return {"lookahead": 1} if decoder == "asynclane" else {}


def test_a_shifted_network_answers_too() -> None:
    shifted = small_runner(shift=1)
    for decoder in ("d3llm", "d2f", "llada"):
        asks = [Ask(prompt, LENGTH, decoder, {"cache": "finished", "block_length": BLOCK}) for prompt in PROMPTS]
        for sequence in run(shifted, words(), asks, LIMITS, pattern=AttentionPattern(logit_shift=1)):
            assert (sequence.canvas[: min(sequence.end_at, LENGTH)] != MASK).all()


def test_it_is_refused_where_keys_are_exact_and_its_knobs_where_it_is_not() -> None:
    with pytest.raises(ParamError, match="cache 'finished' is for models that see the whole canvas"):
        resolve("d3llm", {"cache": "finished"}, 64, AttentionPattern(block_size=16))
    for cache, knob in (("delayed", "cache_delay"), ("dual", "refresh_interval")):
        with pytest.raises(ParamError, match=f"has no parameter '{knob}'; it goes with cache 'finished'") as refused:
            resolve("d3llm", {"cache": cache, knob: 1}, 64)
        assert refused.value.param == knob
