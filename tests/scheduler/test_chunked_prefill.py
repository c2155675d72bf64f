"""Prompts of a block-causal network are computed in chunks, within a limit for each step, and no answer changes."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from asynclane.scheduler.contract import Sampling, StepPlan
from asynclane.scheduler.decoding.attention_pattern import AttentionPattern
from asynclane.scheduler.decoding.params import ParamError
from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.memory.pages import Limits
from asynclane.scheduler.memory.prefix_cache import Page
from asynclane.scheduler.request import Outcome, Request, RequestStats
from asynclane.scheduler.scheduler import Scheduler
from asynclane.scheduler.sequence import Sequence as Running
from asynclane.scheduler.step_cost import LEAST_CHUNK, SHORT_ROOM, Halving, Pacing, StepCost

from ..support.fakes import MASK, BlockCausalExecutor, add, vocabulary
from ..support.scale import ALL, crossed

BLOCK, PAGE = 4, 8
PATTERN = AttentionPattern(block_size=BLOCK)
LIMITS = Limits(slots=80, pages=4000, page_size=PAGE, step_tokens=20_000, max_model_len=2000, max_queue=100)
ROW = 2 * BLOCK  # of a running request: the block before is computed once more with its last tokens
SIZES = [BLOCK, PAGE, 20, 64, 100, 1000, 0] if ALL else [BLOCK, 20, 0]
COST = StepCost([0, 1000], [1e-6, 1.0])
LINEAR = Halving(COST)


def propose(slot: int, position: int) -> tuple[int, float]:
    """Tokens and confidence of a position, whichever slot and step computes it."""
    rng = random.Random(position)
    return rng.randrange(2, 19), rng.random()


@dataclass
class Loop:
    """A scheduler and its device, with two steps in flight if there is a `halving`."""

    limits: Limits
    halving: Halving | None = None
    pacing: Pacing | None = None
    running: dict[int, Running] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)  # prompt positions, of whole blocks, of each step

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.limits, vocabulary(), halving=self.halving, pattern=PATTERN, pacing=self.pacing)
        self.executor = BlockCausalExecutor(propose, BLOCK, PAGE)
        self.executor.length = LIMITS.max_model_len
        self._in_flight: deque[StepPlan] = deque()
        self._borders: dict[int, int] = {}  # of each slot: where the whole blocks of its prompt end

    def add(self, prompt: Sequence[int], length: int = 24, client: str = "", **fields: Any) -> Running:
        decoder = resolve(fields.pop("decoder", "fast-dllm"), {}, length, PATTERN)
        request = Request(len(self.running), np.array(prompt, np.int32), length, decoder, client=client)
        sequence = add(self.scheduler, replace(request, **fields))
        self.running[sequence.id] = sequence
        return sequence

    def step(self) -> StepPlan | None:
        """Plan as many steps as go, and commit the oldest, which is returned."""
        while len(self._in_flight) < (1 if self.halving is None else 2) and (plan := self.scheduler.plan()):
            self._in_flight.append(plan)
        if not self._in_flight:
            return None
        plan = self._in_flight.popleft()
        self.plans.append(plan)
        for placement in plan.placements:
            self._borders[placement.slot] = PATTERN.floor(len(placement.prompt))
        self.prompts.append(sum(max(0, min(row.end, self._borders[row.slot]) - row.start) for row in plan.rows))
        for update in self.scheduler.commit(self.executor.execute(plan)):
            assert update.outcome is not Outcome.FAILED
        self.scheduler.check_integrity()
        return plan

    def finish(self) -> list[Running]:
        while self.step():
            pass
        assert self.scheduler.idle
        return [*self.running.values()]


def prompt(size: int, seed: int = 0) -> list[int]:
    return random.Random(f"{size} {seed}").choices(range(2, 19), k=size)


def facts(sequences: Sequence[Running]) -> list[tuple[list[int], RequestStats]]:
    return [(s.canvas.tolist(), s.stats) for s in sequences]


@pytest.mark.parametrize(
    ("decoder", "sharing"), crossed(["fast-dllm", "asynclane", "freedave", "d3llm"], [True, False])
)
def test_answers_and_usage_are_the_same_whatever_the_size_of_chunks(decoder: str, sharing: bool) -> None:
    wanted = None
    for size in SIZES:
        for depth in (None, LINEAR):
            loop = Loop(replace(LIMITS, prefix_sharing=sharing, prefill_tokens=size), depth)
            for number, length in enumerate((300, 1, 37, 64, 99)):
                loop.add(prompt(length), decoder=decoder, sampling=Sampling(1.0, seed=number), watched=number == 1)
            found = facts(loop.finish())
            wanted = wanted or found
            assert found == wanted, (size, depth)
    loop = Loop(replace(LIMITS, prefix_sharing=sharing, prefill_tokens=1000), LINEAR, Pacing(COST, LINEAR, BLOCK))
    for number, length in enumerate((300, 1, 37, 64, 99)):
        loop.add(prompt(length), decoder=decoder, sampling=Sampling(1.0, seed=number), watched=number == 1)
    assert facts(loop.finish()) == wanted


def paced_loop() -> Loop:
    limits = replace(LIMITS, step_tokens=2000, max_model_len=4000, prefill_tokens=1000)
    loop = Loop(limits, pacing=Pacing(COST, block_size=BLOCK))
    loop.executor.length = limits.max_model_len
    loop.add(prompt(8), length=400, decoder="llada")
    loop.step()
    return loop


def test_a_short_prompt_does_not_wait_for_a_long_one_nor_for_ever_the_other_way_round() -> None:
    loop = paced_loop()
    long = loop.add(prompt(3000))
    for _ in range(3):
        loop.step()
    assert 0 < long.prefilled < 1000
    short = loop.add(prompt(40))
    loop.step()
    assert short.steps == 1
    steps = 0
    while not long.steps:
        loop.add(prompt(60, steps))
        loop.step()
        steps += 1
    assert steps <= 3000 // (LEAST_CHUNK // 2)
    loop.finish()


def test_short_prompts_alone_are_not_paced() -> None:
    loop = paced_loop()
    for number in range(8):
        loop.add(prompt(120, number))
    loop.step()
    assert SHORT_ROOM - 120 < loop.prompts[-1] <= SHORT_ROOM
    loop.finish()


@pytest.mark.parametrize("params", [{}, {"block_length": 32, "lookahead": 32, "threshold": 0.3}], ids=["usual", "wide"])
def test_a_request_longer_than_a_step_gets_an_answer_in_steps_within_their_limit(params: dict[str, object]) -> None:
    limits = replace(LIMITS, step_tokens=40, prefill_tokens=20)
    loop = Loop(limits, LINEAR)
    for number, length in enumerate((300, 1, 900)):
        decoder = resolve("asynclane", {"min_fill": 0.0, **params}, 64, PATTERN)
        request = Request(number, np.array(prompt(length), np.int32), 64, decoder)
        loop.running[number] = add(loop.scheduler, request)
    sequences = loop.finish()
    assert max(plan.tokens for plan in loop.plans) <= limits.step_tokens
    for sequence in sequences:
        assert sequence.outcome is not Outcome.FAILED
        assert not (sequence.canvas[: sequence.sent] == MASK).any()


@pytest.mark.parametrize(
    ("decoder", "params", "refused"),
    [
        ("fast-dllm", {}, None),
        ("freedave", {}, "decoder"),
        ("asynclane", {"cache": "none"}, "decoder"),
    ],
)
def test_a_decoder_that_computes_whole_requests_refuses_those_longer_than_a_step(
    decoder: str, params: dict[str, object], refused: str | None
) -> None:
    loop = Loop(replace(LIMITS, step_tokens=40, prefill_tokens=20))
    request = Request(0, np.array(prompt(60), np.int32), 24, resolve(decoder, params, 24, PATTERN))
    if refused is None:
        loop.running[0] = add(loop.scheduler, request)
        loop.finish()
        return
    with pytest.raises(ParamError, match="84 tokens are computed at once, and a step has 40: decoder 'fast-dllm'") as e:
        loop.scheduler.add(request)
    assert e.value.param == refused


class CountedPages(list[Page]):
    """The pages of a lease, and how often one was looked at."""

    looks = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.looks += len(found) if isinstance(at, slice) else 1
        return found

    def __iter__(self) -> Iterator[Page]:
        self.looks += len(self)
        return super().__iter__()


def test_the_pages_of_a_long_prompt_are_not_looked_through_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests have the same prompt: one waits for the pages that the other computes."""
    monkeypatch.setattr(Scheduler, "check_integrity", lambda scheduler: None)  # it looks at all of them
    loop = Loop(replace(LIMITS, prefix_sharing=True, prefill_tokens=2 * PAGE))
    sequences = [loop.add(prompt(1900)) for _ in range(2)]
    loop.step()
    leases = [sequence.lease for sequence in sequences]
    for lease in leases:
        assert lease is not None
        lease.pages = CountedPages(lease.pages)
    steps = 0
    while not sequences[1].steps:
        loop.step()
        steps += 1
    assert steps > 100
    for lease in leases:
        assert lease is not None
        pages = lease.pages
        assert isinstance(pages, CountedPages)
        assert pages.looks < 10 * (len(pages) + steps)


@pytest.mark.parametrize("size", [BLOCK, 20, 1000])
def test_a_long_prompt_does_not_hold_up_those_that_run(size: int) -> None:
    loop = Loop(replace(LIMITS, prefill_tokens=size))
    streams = [loop.add(prompt(8, number), length=800) for number in range(6)]
    while not all(stream.steps for stream in streams):
        loop.step()
    long = loop.add(prompt(1600))
    while not long.steps:
        before = [stream.steps for stream in streams if not stream.outcome]
        plan = loop.step()
        assert plan is not None
        assert plan.tokens <= size + ROW * len(streams) + ROW
        after = [stream.steps for stream in streams if not stream.outcome]
        assert len(before) != len(after) or all(b + 1 == a for a, b in zip(after, before, strict=True))
    assert long.computed_tokens == 1600 + BLOCK
    for stream in streams:
        loop.scheduler.end(stream.id, Outcome.ABORTED)
    loop.finish()


def test_many_prompts_share_the_limit_and_go_on_in_the_order_in_which_they_came() -> None:
    loop = Loop(replace(LIMITS, prefill_tokens=512))
    new = [loop.add(prompt(200, number)) for number in range(64)]
    begun: list[int] = []
    while len(begun) < len(new):
        plan = loop.step()
        assert plan is not None
        assert loop.prompts[-1] <= 512
        begun += [one.id for one in new if one.steps and one.id not in begun]
    assert len(loop.plans) == 64 * 200 // 512
    assert begun == sorted(begun)
    assert loop.prompts == [512] * 25
    loop.finish()


def test_the_limit_is_for_all_steps_in_flight_together() -> None:
    loop = Loop(replace(LIMITS, prefill_tokens=64), LINEAR)
    for number in range(12):
        loop.add(prompt(40 * number, number), length=60)
    loop.finish()
    pairs = [one + other for one, other in itertools.pairwise(loop.prompts)]
    assert max(pairs) <= 64
    assert sum(loop.prompts) == sum(40 * number for number in range(12))


def test_clients_take_turns_with_their_prompts() -> None:
    """One that sends many long ones does not keep another waiting for all of them."""
    loop = Loop(replace(LIMITS, prefill_tokens=64))
    for number in range(20):
        loop.add(prompt(640, number), client="greedy")
    loop.step()
    late = loop.add(prompt(320), client="other")
    steps = 0
    while not late.steps:
        loop.step()
        steps += 1
    assert steps <= 2 * 320 // 64 + 1
    loop.finish()


def test_what_of_a_prompt_was_computed_stays_when_its_request_leaves() -> None:
    """Another one that waits for the same pages goes on from there."""
    loop = Loop(replace(LIMITS, prefix_sharing=True, prefill_tokens=64))
    first, second = loop.add([*prompt(320), 3]), loop.add([*prompt(320), 4])
    for _ in range(2):
        loop.step()
    assert (first.stats.computed_tokens, first.stats.forwards, first.stats.prompt_tokens) == (128, 0, 321)
    assert second.stats == RequestStats(lanes=second.stats.lanes)
    loop.scheduler.end(first.id, Outcome.ABORTED)
    loop.finish()
    assert second.cached_tokens == 128
    assert sum(loop.prompts) == 320


def test_a_request_with_the_same_prompt_follows_and_computes_nothing_again() -> None:
    loop = Loop(replace(LIMITS, prefix_sharing=True, prefill_tokens=64))
    same = [loop.add([*prompt(320), last], length=16) for last in (3, 4, 5)]
    other = loop.add(prompt(100, 9))
    loop.finish()
    assert [sequence.cached_tokens for sequence in (*same, other)] == [0, 320, 320, 0]
    assert sum(loop.prompts) == 320 + 100


@pytest.mark.parametrize("other_prompt", [320, 8], ids=["who waits for it as well", "with work of its own"])
def test_who_waits_for_a_prompt_of_the_same_client_does_not_take_its_turn(other_prompt: int) -> None:
    """Beside another client that has little work, a client gets one turn in each step."""
    loop = Loop(replace(LIMITS, prefix_sharing=True, prefill_tokens=64))
    loop.add(prompt(320), client="one")
    loop.step()
    loop.add(prompt(320), client="one")
    loop.step()
    loop.add([*prompt(320)[:other_prompt], 3, 4, 5], client="other", length=1)
    assert all(sequence.outcome is not None for sequence in loop.finish())


def test_only_a_cache_that_keeps_the_prompt_has_it_in_chunks() -> None:
    loop = Loop(replace(LIMITS, prefill_tokens=64))
    decoder = resolve("fast-dllm", {"cache": "none"}, 24, PATTERN)
    sequence = add(loop.scheduler, Request(0, np.array(prompt(320), np.int32), 24, decoder))
    assert sum(row.tokens for row in (loop.step() or loop.plans[0]).rows) == 324
    assert sequence.steps == 1


def test_a_limit_that_does_not_suit_the_network_is_refused() -> None:
    with pytest.raises(ValueError, match="--chunked-prefill-size is for block-causal models"):
        Scheduler(replace(LIMITS, prefill_tokens=512), vocabulary())
    with pytest.raises(ValueError, match="--chunked-prefill-size 3 is less than the model's block of 4: raise it"):
        Scheduler(replace(LIMITS, prefill_tokens=3), vocabulary(), pattern=PATTERN)
