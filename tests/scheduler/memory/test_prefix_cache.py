"""Block-causal networks: keys that are kept, or shared with others, are always those of the tokens as they are now."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from asynclane.scheduler.decoding.attention_pattern import AttentionPattern
from asynclane.scheduler.decoding.params import ParamError
from asynclane.scheduler.decoding.registry import DECODERS
from asynclane.scheduler.decoding.resolve import defaults_of, resolve
from asynclane.scheduler.memory.pages import Limits, Pool
from asynclane.scheduler.memory.prefix_cache import PrefixCache
from asynclane.scheduler.request import Outcome, Request
from asynclane.scheduler.scheduler import Scheduler
from asynclane.scheduler.sequence import Sequence
from asynclane.scheduler.step_cost import Pacing

from ...support import schedules
from ...support.driver import refusal
from ...support.fakes import BlockCausalExecutor, ScriptedExecutor, add, random_proposals, vocabulary
from ...support.schedules import COST, LIMITS, Schedules, decoder_for, random_schedules

BLOCKS = AttentionPattern(block_size=4)
SHARING = replace(LIMITS, prefix_sharing=True)


def suits_blocks(decoder: str, params: dict[str, Any]) -> bool:
    try:
        decoder_for(decoder, params, 32, BLOCKS)
    except ParamError:
        return False
    return True


# Those of the table that a block-causal network takes, and one that is for such networks alone.
CASES = [case for case in schedules.CASES if suits_blocks(*case)]
CASES.append(("tccf", {"turn": "newline", "fine_length": 2, "block_length": 8}))


class SharedPrefixes(Schedules):
    """Prompts that begin alike, and some that go on where an answer ended, on few pages."""

    limits, decoders = SHARING, CASES
    pattern, shifts = BLOCKS, False

    def new_executor(self) -> ScriptedExecutor:
        shift = self.pattern.logit_shift
        return BlockCausalExecutor(random_proposals(seed=7), BLOCKS.block_size, LIMITS.page_size, shift)

    @precondition(lambda self: self.requests)
    @rule(pick=st.randoms(use_true_random=False), length=st.integers(1, 20))
    def arrive_as_the_next_turn(self, pick: random.Random, length: int) -> None:
        before = pick.choice(list(self.requests.values()))
        prompt = np.concatenate((before.request.prompt, before.canvas[: before.sent], np.full(3, 7, np.int32)))
        if len(prompt) + length <= LIMITS.max_model_len:
            decoder = resolve("fast-dllm", {}, length, self.pattern)
            self._add(Request(len(self.requests), prompt.astype(np.int32), length, decoder))

    @invariant()
    def lanes_of_serial_decoders_end_with_a_block(self) -> None:
        for sequence in self.scheduler.running.values():
            for lane in sequence.tree.live if sequence.request.decoder.name in ("llada", "fast-dllm") else ():
                assert (sequence.prompt_length + lane.end) % BLOCKS.block_size == 0 or lane.end == sequence.tree.limit


SharedPrefixes.TestCase.settings = random_schedules(12, 200)
TestSharedPrefixes = SharedPrefixes.TestCase


class ShiftedPrefixes(SharedPrefixes):
    """The position before a block predicts its first token."""

    decoders: ClassVar = [*CASES, ("fast-dllm-v2", {"sub_block_length": 2, "threshold": 0.5})]
    depth, shifts, limits = 2, True, replace(SHARING, prefill_tokens=20)

    @initialize(shift=st.just(1))
    def begin(self, shift: int) -> None:
        super().begin(shift)


ShiftedPrefixes.TestCase.settings = random_schedules(6, 100)
TestShiftedPrefixes = ShiftedPrefixes.TestCase


class SharedPrefixesInFlight(SharedPrefixes):
    depth = 2


SharedPrefixesInFlight.TestCase.settings = random_schedules(6, 120)
TestSharedPrefixesInFlight = SharedPrefixesInFlight.TestCase


class WithoutSharing(SharedPrefixes):
    limits = LIMITS


WithoutSharing.TestCase.settings = random_schedules(5, 60)
TestWithoutSharing = WithoutSharing.TestCase


class Chunked(SharedPrefixes):
    limits = replace(SHARING, prefill_tokens=20)


Chunked.TestCase.settings = random_schedules(8, 100)
TestChunked = Chunked.TestCase


class ChunkedInFlight(Chunked):
    depth = 2


ChunkedInFlight.TestCase.settings = random_schedules(6, 100)
TestChunkedInFlight = ChunkedInFlight.TestCase


class Paced(ChunkedInFlight):
    """Short prompts go before long ones, and both go on."""

    limits = replace(SHARING, prefill_tokens=40)

    @initialize(shift=st.just(0))
    def begin(self, shift: int) -> None:
        super().begin(shift)
        self.scheduler.pacing = Pacing(COST, block_size=BLOCKS.block_size)
        self.scheduler.pacing.short_prompt = 24


Paced.TestCase.settings = random_schedules(6, 100)
TestPaced = Paced.TestCase


class ChunkedWithoutSharing(Chunked):
    limits = replace(LIMITS, prefill_tokens=4)


ChunkedWithoutSharing.TestCase.settings = random_schedules(5, 60)
TestChunkedWithoutSharing = ChunkedWithoutSharing.TestCase


def serve(
    executor: BlockCausalExecutor, scheduler: Scheduler, *prompts: list[int], cache_salt: str = "", length: int = 12
) -> list[Sequence]:
    """Requests that arrive together, to their ends."""
    decoder = resolve("fast-dllm", {}, length, BLOCKS)
    asked = [
        add(scheduler, Request(number, np.array(prompt, np.int32), length, decoder, cache_salt=cache_salt))
        for number, prompt in enumerate(prompts)
    ]
    while (plan := scheduler.plan()) is not None:
        scheduler.commit(executor.execute(plan))
        scheduler.check_integrity()
    return asked


def new_executor() -> BlockCausalExecutor:
    return BlockCausalExecutor(random_proposals(seed=3), BLOCKS.block_size, LIMITS.page_size)


def test_what_two_requests_begin_with_is_computed_once_though_they_run_at_the_same_moment() -> None:
    same = [6] * 40
    first, second, third = serve(new_executor(), Scheduler(SHARING, vocabulary(), pattern=BLOCKS), same, same, [7] * 9)
    assert (first.cached_tokens, second.cached_tokens, third.cached_tokens) == (0, 40, 0)
    assert first.computed_tokens > second.computed_tokens


def test_pages_outlive_their_request_and_a_prompt_may_share_only_a_part() -> None:
    executor, scheduler = new_executor(), Scheduler(SHARING, vocabulary(), pattern=BLOCKS)
    serve(executor, scheduler, [6] * 40)
    assert scheduler.load().pages_kept >= 5
    assert scheduler.load().pages_used == 0
    found = serve(executor, scheduler, [6] * 20 + [7] * 20, [6] * 15 + [7], [7] + [6] * 39)
    assert [sequence.cached_tokens for sequence in found] == [16, 8, 0]


def test_an_answer_is_a_prefix_for_the_next_turn_as_far_as_it_was_computed_with_its_last_tokens() -> None:
    executor, scheduler = new_executor(), Scheduler(SHARING, vocabulary(), pattern=BLOCKS)
    (first,) = serve(executor, scheduler, [6] * 20, length=40)
    said = first.canvas[: first.sent].tolist()
    (second,) = serve(executor, scheduler, [6] * 20 + said + [7] * 8)
    last_block = BLOCKS.block_size  # no call has computed it with its last tokens
    assert second.cached_tokens >= (20 + len(said) - 2 * last_block) // LIMITS.page_size * LIMITS.page_size > 20


def test_of_two_answers_that_are_the_same_one_stays() -> None:
    executor = BlockCausalExecutor(lambda slot, position: (6, 1.0), BLOCKS.block_size, LIMITS.page_size)
    scheduler = Scheduler(SHARING, vocabulary(), pattern=BLOCKS)
    one, two = serve(executor, scheduler, [6] * 20, [6] * 20, length=44)
    assert one.canvas.tolist() == two.canvas.tolist()
    assert scheduler.load().pages_kept == (20 + 44 - BLOCKS.block_size) // LIMITS.page_size


def test_another_salt_shares_nothing() -> None:
    executor, scheduler = new_executor(), Scheduler(SHARING, vocabulary(), pattern=BLOCKS)
    for cache_salt, cached in (("", 0), ("a", 0), ("b", 0), ("a", 32)):
        (sequence,) = serve(executor, scheduler, [6] * 32, cache_salt=cache_salt)
        assert sequence.cached_tokens == cached


def test_without_sharing_nothing_outlives_a_request() -> None:
    executor, scheduler = new_executor(), Scheduler(LIMITS, vocabulary(), pattern=BLOCKS)
    for _ in range(2):
        (sequence,) = serve(executor, scheduler, [6] * 40)
        assert sequence.cached_tokens == scheduler.load().pages_kept == scheduler.pages.used == 0


def test_the_least_recently_used_prefix_goes_first_and_its_last_pages_before_its_first() -> None:
    prefixes = PrefixCache(Pool(6), page_size=2, keeps=True)
    names = [prefixes.block_hashes(np.full(4, word, np.int32), "", None) for word in range(4)]
    for number, name in enumerate(names[:3]):
        lease, own = prefixes.take(name, 2, number)
        assert own == ()
        assert lease.begin() == 0
        lease.computed(4)
        lease.end()
    lease, _ = prefixes.take(names[0], 2, 4)  # used again
    assert lease.begin() == 4
    lease.end()
    lease, _ = prefixes.take(names[3], 3, 5)  # takes three pages of the six
    found = [len(prefixes._found(name)) for name in names]
    assert found == [2, 0, 1, 2]
    assert not prefixes.fits(names[1], 5)
    assert prefixes.fits(names[0], 3)
    prefixes.check([lease])
    with pytest.raises(RuntimeError, match="counts 1 readers and has 0"):
        prefixes.check([])


def test_what_a_leader_has_not_computed_when_it_leaves_another_one_computes() -> None:
    prefixes = PrefixCache(Pool(6), page_size=2, keeps=True)
    names = prefixes.block_hashes(np.full(4, 1, np.int32), "", None)
    (first, _), (second, _) = (prefixes.take(names, 3, number) for number in range(2))
    assert (first.begin(), second.begin()) == (0, 4)
    assert not second.ready({})
    assert not second.ready({0: 2})
    assert second.ready({0: 4})
    first.end()
    assert second.begin() == 0
    second.end()
    assert prefixes.idle == 0, "nobody has computed them"


@pytest.mark.parametrize(
    ("name", "params", "param"),
    [
        ("fast-dllm", {"cache": "dual"}, "cache"),
        ("asynclane", {"refresh_every": 1}, "refresh_every"),
        ("asynclane", {"settle": False}, "settle"),
        ("asynclane", {"siblings": "isolated"}, "siblings"),
        ("asynclane", {"block_length": 24}, "block_length"),
        ("llada", {"block_length": 8}, "block_length"),
        ("adablock", {}, "decoder"),
    ],
)
def test_what_makes_no_sense_with_blocks_is_refused_by_name(name: str, params: dict[str, object], param: str) -> None:
    with pytest.raises(ParamError) as refused:
        resolve(name, params, 64, AttentionPattern(block_size=16))
    assert refused.value.param == param


@pytest.mark.parametrize("block", [4, 20])
def test_defaults_follow_the_networks_block(block: int) -> None:
    pattern = AttentionPattern(block_size=block)
    for name in DECODERS:
        if (message := refusal(name, pattern)) is not None:
            with pytest.raises(ParamError, match=message) as refused:
                resolve(name, {}, 64, pattern)
            assert refused.value.param in ("decoder", "cache")
            continue
        defaults = defaults_of(name, pattern)
        resolve(name, {param: value for param, value in defaults.items() if value is not None}, 64, pattern)
        resolve(name, {}, 64, pattern)
    serial, lanes = defaults_of("fast-dllm", pattern), defaults_of("asynclane", pattern)
    assert (serial["block_length"], serial["cache"]) == (block, "prefix")
    assert (lanes["block_length"], lanes["cache"]) == (block, "compact")
    assert defaults_of("fast-dllm")["cache"] == "dual"


def test_a_suffix_is_refused_where_no_position_sees_it() -> None:
    scheduler = Scheduler(LIMITS, vocabulary(), pattern=BLOCKS)
    decoder = resolve("fast-dllm", {}, 8, BLOCKS)
    with pytest.raises(ParamError, match="no position sees past its block") as refused:
        scheduler.add(Request(0, np.full(4, 6, np.int32), 8, decoder, suffix=np.full(2, 6, np.int32)))
    assert refused.value.param == "suffix"


@pytest.mark.parametrize("params", [{}, {"reuse": False}])
def test_a_prompt_shorter_than_a_block_is_answered(params: dict[str, object]) -> None:
    """Nothing of it settles by itself."""
    scheduler, executor = Scheduler(LIMITS, vocabulary(), pattern=BLOCKS), new_executor()
    sequence = add(scheduler, Request(0, np.full(2, 6, np.int32), 20, resolve("asynclane", params, 20, BLOCKS)))
    for _ in range(50):
        if (plan := scheduler.plan()) is not None:
            scheduler.commit(executor.execute(plan))
    assert scheduler.idle
    assert sequence.outcome in (Outcome.STOP, Outcome.LENGTH)


def test_limits_that_do_not_suit_the_network_are_refused() -> None:
    with pytest.raises(ValueError, match="--prefix-sharing is for block-causal models"):
        Scheduler(SHARING, vocabulary())
    for limits in (replace(LIMITS, page_size=6, pages=80), replace(LIMITS, max_model_len=126)):
        with pytest.raises(ValueError, match="must be a multiple of the model's block of 4"):
            Scheduler(limits, vocabulary(), pattern=BLOCKS)


def test_an_answer_may_be_as_long_as_the_context_though_it_ends_within_a_block() -> None:
    limits = Limits(slots=1, pages=4, page_size=8, step_tokens=32, max_model_len=32, max_queue=1, prefix_sharing=True)
    executor, scheduler = new_executor(), Scheduler(limits, vocabulary(), pattern=BLOCKS)
    for prompt in (19, 20, 5):
        (sequence,) = serve(executor, scheduler, [6] * prompt, length=30 - prompt)
        assert sequence.frontier == 30 - prompt or sequence.end_at < sequence.frontier
