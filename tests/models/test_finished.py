"""d3LLM's cache, where blocks are kept some forwards after they were finished: what it computes, what an answer is."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from asynclane.models.exec.runner import Runner
from asynclane.scheduler import AttentionPattern, ParamError, Scheduler, Vocabulary, resolve

from ..support.driver import LIMITS, Answer, Spec, full_logits, run
from ..support.fakes import MASK, add
from ..support.fakes import vocabulary as words
from ..support.golden import PROMPTS, WHOLE
from ..support.scale import crossed, part
from ..support.small_network import small_runner

LENGTH, BLOCK = 24, 8
SHORT = ([5, 9, 3, 6], [7], [3, 3, 8, 10, 4, 2, 2, 9, 12, 11, 5])
NEVER = 1_000_000


@dataclass(slots=True)
class Published:
    """The authors' bookkeeping: where each forward begins to compute, from what it finds on the canvas."""

    delay: int
    interval: int
    ends: list[int]  # of the prompt and the blocks, absolute
    completed: dict[int, int] = field(default_factory=lambda: {0: 0})
    forward: int = 0
    cached: int = 0

    def start(self, tokens: np.ndarray, mask: int) -> int:
        self.forward += 1
        begin, ripe, waits = self.cached, None, False
        for number, end in enumerate(self.ends):
            if end <= begin:
                continue
            if (tokens[self.ends[number - 1] if number else 0 : end] == mask).any():
                break
            since = self.completed.setdefault(number, self.forward)
            if self.forward - since < self.delay:
                waits = True
                break
            ripe = end
        if ripe is not None:
            self.cached = ripe
            return begin
        return 0 if waits or self.forward % self.interval == 0 else begin


def written_out(runner: Runner, prompt: list[int], delay: int, interval: int) -> list[int]:
    """One token a forward, in blocks; positions that are not computed keep the keys of the last forward that did."""
    x = np.array([*prompt, *[MASK] * LENGTH], np.int32)
    ends = list(range(len(prompt), len(x) + 1, BLOCK))
    published = Published(delay, interval, ends)
    for end in ends[1:]:
        while (x[:end] == MASK).any():
            start = published.start(x, MASK)
            chance, best = full_logits(runner, x, MASK, start).softmax(-1).max(-1)
            chance[torch.from_numpy(x[start:] != MASK)] = -1.0
            chosen = int(chance[: end - start].argmax())
            x[start + chosen] = int(best[chosen])
    return x[len(prompt) :].tolist()


@pytest.mark.parametrize(("delay", "interval"), [(0, NEVER), (1, NEVER), (5, 4), (0, 3)])
def test_answers_are_those_of_the_method_written_out(delay: int, interval: int) -> None:
    small = small_runner()
    params = {"block_length": BLOCK, "cache": "finished", "cache_delay": delay, "refresh_interval": interval, **WHOLE}
    got = run(small, words(), [Spec(prompt, LENGTH, "llada", params) for prompt in SHORT])
    assert [s.canvas.tolist() for s in got] == [written_out(small, prompt, delay, interval) for prompt in SHORT]


@pytest.mark.parametrize(("decoder", "when"), crossed(["d3llm", "d2f"], [(0, NEVER), (1, NEVER), (2, 7)]))
def test_several_blocks_at_once_are_computed_as_published(
    decoder: str, when: tuple[int, int], runner: Runner, vocabulary: Vocabulary
) -> None:
    """Until two more are finished in one forward, which then wait together."""
    (delay, interval), cached = when, 0
    for prompt in part(PROMPTS, 12):
        params = {"cache": "finished", "cache_delay": delay, "refresh_interval": interval, "block_length": 16, **WHOLE}
        scheduler = Scheduler(LIMITS, vocabulary)
        sequence = add(scheduler, Spec(prompt, 96, decoder, params).request(0, scheduler.pattern))
        published = Published(delay, interval, list(range(len(prompt), len(prompt) + 97, 16)))
        while (plan := scheduler.plan()) is not None:
            first = sequence.tree.live[0].start
            wanted = published.start(np.array([*prompt, *sequence.canvas]), vocabulary.mask_id)
            assert (plan.rows[0].start, plan.rows[0].end) == (wanted, len(prompt) + 96)
            scheduler.commit(runner.execute(plan))
            if delay and sequence.tree.live and sequence.tree.live[0].start > first + 16:
                break
        cached += published.cached > len(prompt)
    assert cached


def test_a_delay_longer_than_an_answer_is_no_cache(runner: Runner, vocabulary: Vocabulary) -> None:
    def costs(answer: Answer) -> tuple[object, ...]:
        return answer.canvas.tolist(), answer.steps, answer.computed_tokens, answer.refreshes

    for decoder in part(("d3llm", "d2f", "llada", "asynclane"), 2):
        kinds = ({"cache": "none"}, {"cache": "finished", "cache_delay": NEVER})
        specs = [Spec(PROMPTS[0], 24, decoder, params, ranks=2) for params in kinds]
        plain, waiting = run(runner, vocabulary, specs)
        assert costs(plain) == costs(waiting)


def test_the_sooner_blocks_are_cached_the_less_is_computed(runner: Runner, vocabulary: Vocabulary) -> None:
    def share(delay: int) -> float:
        params = {"cache": "finished", "cache_delay": delay, **WHOLE}
        answers = run(runner, vocabulary, [Spec(prompt, 96, "d3llm", params) for prompt in PROMPTS[:1]])
        return sum(answer.computed_tokens for answer in answers) / sum(answer.steps for answer in answers)

    assert share(0) < share(1) < share(NEVER)


def test_it_is_refused_where_keys_are_exact_and_its_parameters_with_other_caches() -> None:
    with pytest.raises(ParamError, match="cache 'finished' of decoder 'd3llm' is for models that see"):
        resolve("d3llm", {"cache": "finished"}, 64, AttentionPattern(block_size=16))
    with pytest.raises(ParamError, match="'cache_delay'; it goes with cache 'finished'"):
        resolve("d3llm", {"cache": "delayed", "cache_delay": 1}, 64)
