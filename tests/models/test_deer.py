"""DEER: whatever another network drafts, the text is that of the network that is served, and good drafts save
forwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from asynclane.kernels.common.types import Draws
from asynclane.kernels.predict.reference import sample
from asynclane.models.exec.pair import Ids, Pair
from asynclane.models.exec.runner import Runner, Waiter
from asynclane.scheduler import (
    AttentionPattern,
    Budget,
    DeviceLost,
    Drafter,
    Halving,
    Pacing,
    ParamError,
    Preferences,
    Sampling,
    Scheduler,
    StepCost,
    resolve,
)
from asynclane.scheduler.contract import GREEDY, DeviceCommitRule, Ints, Placement, Row, Span, StepPlan, StepResult
from asynclane.scheduler.step_cost import StepSize

from ..support.cases import SMALL, network
from ..support.driver import LIMITS, TWO_IN_FLIGHT, Answer, Spec, run, serve
from ..support.fakes import END, MASK, PIECES, ScriptedExecutor, add, raising, vocabulary
from ..support.scale import crossed, part
from ..support.small_network import small_pair, small_runner

SERVED = SMALL["next-token"]
DRAFTERS = {
    "whole canvas": Drafter(),
    "shifted": Drafter(logit_shift=1),
    "blocks": Drafter(block_size=8),
    "shifted blocks": Drafter(1, 8),
}
SAMPLINGS = {
    "greedy": Sampling(),
    "hot": Sampling(1.0, seed=5),
    "narrow": Sampling(0.8, 0.9, seed=7, top_k=6),
}
LENGTH = 40
WHOLE = {"early_stop": False}
PROMPTS = network("next-token").prompts


def drafted(drafter: Drafter = DRAFTERS["blocks"]) -> AttentionPattern:
    return replace(SERVED, drafter=drafter)


@cache
def served() -> Runner:
    return small_runner(SERVED)


@cache
def alone(sampling: Sampling) -> list[Answer]:
    """The answers of the served network by one token a forward."""
    specs = [Spec(prompt, LENGTH, "autoregressive", WHOLE, sampling=sampling, ranks=2) for prompt in PROMPTS]
    return run(served(), vocabulary(), specs, pattern=SERVED)


class Oracle:
    """A drafter that knows the texts of some prompts, and says something else at every position of `wrong`."""

    def __init__(self, texts: Sequence[Sequence[int]], wrong: Sequence[int] = ()) -> None:
        self._texts, self._wrong = [np.array(text, np.int32) for text in texts], {*wrong}
        self._slots: dict[int, Ints] = {}

    def place(self, placements: Sequence[Placement]) -> None:
        for one in placements:
            size = len(one.prompt)
            (self._slots[one.slot],) = [
                text for text in self._texts if len(text) == size + LENGTH and np.array_equal(text[:size], one.prompt)
            ]

    def launch(self, plan: StepPlan) -> Waiter:
        self.place(plan.placements)
        positions = [(row.slot, at) for row in plan.rows for span in row.spans for at in range(span.start, span.end)]
        said = np.array([self._slots[slot][at] + (at in self._wrong) for slot, at in positions], np.int32)
        result = StepResult(said, said, np.ones(len(said)), 0.001)
        return lambda: result


def with_oracle(wrong: Sequence[int] = ()) -> Pair:
    texts = [[*prompt, *answer.canvas.tolist()] for prompt, answer in zip(PROMPTS, alone(Sampling()), strict=True)]
    return Pair(served(), Oracle(texts, wrong), Ids(MASK, MASK, len(PIECES)))


class Recording:
    """A pair, and the plans that it has executed."""

    def __init__(self, pair: Pair) -> None:
        self.plans: list[StepPlan] = []
        self._pair = pair

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        return self._pair.execute(plan)


@pytest.mark.parametrize(("drafter", "sampling"), crossed(DRAFTERS, SAMPLINGS))
def test_text_and_probabilities_are_those_of_one_token_a_forward_whatever_is_drafted(
    drafter: str, sampling: str
) -> None:
    """To the bit, at temperature 0 and with a seed. Some drafts are right, so positions were computed together."""
    pattern, forwards = drafted(DRAFTERS[drafter]), 0
    for length in (2, 32):
        params = WHOLE | {"draft_length": length}
        specs = [Spec(prompt, LENGTH, "deer", params, sampling=SAMPLINGS[sampling], ranks=2) for prompt in PROMPTS[:3]]
        for answer, want in zip(
            run(small_pair(pattern), vocabulary(), specs, pattern=pattern), alone(SAMPLINGS[sampling])[:3], strict=True
        ):
            assert (answer.canvas.tolist(), answer.streamed) == (want.canvas.tolist(), want.streamed)
            assert answer.scores is not None
            assert want.scores is not None
            np.testing.assert_array_equal(answer.scores.logprobs, want.scores.logprobs)
            np.testing.assert_array_equal(answer.scores.ranked, want.scores.ranked)
            forwards += answer.steps
    assert forwards < 2 * 3 * (2 * LENGTH - 1)  # that many if all drafts were wrong


def test_a_step_that_drafts_for_one_request_may_carry_another_with_fewer_alternatives() -> None:
    specs = [Spec(PROMPTS[0], LENGTH // 2, "deer", WHOLE | {"draft_length": 1}, ranks=3)]
    specs.append(Spec(PROMPTS[1], LENGTH // 2, "autoregressive", WHOLE, ranks=0))
    pattern = drafted()
    both = run(small_pair(pattern), vocabulary(), specs, pattern=pattern)
    for answer, spec in zip(both, specs, strict=True):
        (want,) = run(small_pair(pattern), vocabulary(), [spec], pattern=pattern)
        assert answer.canvas.tolist() == want.canvas.tolist()
        assert answer.scores is not None
        assert want.scores is not None
        np.testing.assert_array_equal(answer.scores.logprobs, want.scores.logprobs)


@pytest.mark.parametrize("length", [1, 4, 7, 32])
def test_a_drafter_that_is_always_right_brings_one_token_more_than_it_drafts_in_each_check(length: int) -> None:
    specs = [Spec(prompt, LENGTH, "deer", WHOLE | {"draft_length": length}, watched=True) for prompt in PROMPTS]
    for answer, want in zip(run(with_oracle(), vocabulary(), specs, pattern=drafted()), alone(Sampling()), strict=True):
        assert answer.canvas.tolist() == want.canvas.tolist()
        commits = [len(event.positions) for event in answer.events]
        checks = -(-LENGTH // (length + 1))
        assert commits[: 2 * checks - 2] == [0, length + 1] * (checks - 1)
        assert sum(commits) == LENGTH
        assert answer.steps <= 2 * checks


def test_a_check_commits_up_to_the_first_wrong_token_and_the_right_one_in_its_place() -> None:
    prompt = PROMPTS[1]
    wrong = [len(prompt) + at for at in (0, 4, 5, 20)]
    spec = Spec(prompt, LENGTH, "deer", WHOLE | {"draft_length": 8}, watched=True)
    (answer,) = run(with_oracle(wrong), vocabulary(), [spec], pattern=drafted())
    assert answer.canvas.tolist() == alone(Sampling())[1].canvas.tolist()
    ends = np.cumsum([len(event.positions) for event in answer.events])[1::2].tolist()
    assert ends == [1, 5, 6, 15, 21, 30, 39, 40][: len(ends)]
    assert answer.steps == 2 * len(ends) + (LENGTH - ends[-1])


def test_each_token_is_computed_once_by_the_served_network() -> None:
    """But for those of drafts that were wrong, and the prompt by both networks."""
    specs = [Spec(prompt, LENGTH, "deer", WHOLE | {"draft_length": 3}) for prompt in PROMPTS]
    pair = Recording(with_oracle())
    run(pair, vocabulary(), specs, pattern=drafted(Drafter()))
    own = sum(row.tokens for plan in pair.plans for row in plan.rows if not row.drafter)
    assert own == sum(map(len, PROMPTS)) + len(PROMPTS) * (LENGTH - 1)


def test_two_networks_that_draw_with_the_same_noise_agree_nearly_as_often_as_any_two_can() -> None:
    """At least (1 - d) / (1 + d) of the draws are equal where the two distributions differ by d."""
    generator, count = torch.Generator().manual_seed(0), 20_000
    ones, zeros = torch.ones(count), torch.zeros(count, dtype=torch.int64)
    draws = Draws(ones, ones, zeros, torch.zeros(count), torch.arange(count), zeros + 7, zeros)
    for spread in (0.1, 0.5, 2.0):
        served = torch.randn(40, generator=generator)
        drafter = served + spread * torch.randn(40, generator=generator)
        tokens = [sample(logits.repeat(count, 1), draws)[0] for logits in (served, drafter)]
        apart = float((served.softmax(0) - drafter.softmax(0)).abs().sum()) / 2
        equal = float((tokens[0] == tokens[1]).float().mean())
        assert (1 - apart) / (1 + apart) - 0.01 < equal < 1 - apart + 0.01
        frequencies = torch.bincount(tokens[0], minlength=40) / count
        torch.testing.assert_close(frequencies, served.softmax(0), atol=0.012, rtol=0)


class FromScratch:
    """A drafter whose drafts are compared with those of one that keeps no keys."""

    def __init__(self, pattern: AttentionPattern) -> None:
        self.runner, self._other = small_runner(pattern, seed=1), small_runner(pattern, seed=1)
        self._texts = np.full((LIMITS.slots, 512), MASK, np.int32)
        self.compared = 0

    def place(self, placements: Sequence[Placement]) -> None:
        self.runner.place(placements)
        self._other.place(placements)
        for one in placements:
            self._texts[one.slot] = MASK
            self._texts[one.slot, : len(one.prompt)] = one.prompt

    def launch(self, plan: StepPlan) -> Waiter:
        self.place(plan.placements)
        rows = []
        for row in plan.rows:
            assert row.host_tokens is not None
            self._texts[row.slot, row.start : row.end] = row.host_tokens
            rows.append(row._replace(start=0, host_tokens=self._texts[row.slot, : row.end].copy()))
        result, want = (
            each.execute(StepPlan((), tuple(part))) for each, part in ((self.runner, plan.rows), (self._other, rows))
        )
        np.testing.assert_array_equal(result.proposals, want.proposals)
        self.compared += len(want.proposals)
        return lambda: result


@pytest.mark.parametrize("drafter", part([Drafter(block_size=8), Drafter(1, 8), Drafter(block_size=16)], 2), ids=str)
def test_drafts_of_a_network_with_blocks_are_those_that_it_makes_without_a_cache(drafter: Drafter) -> None:
    pattern = drafted(drafter)
    drafts = FromScratch(AttentionPattern(drafter.logit_shift, drafter.block_size))
    pair = Pair(served(), drafts, Ids(MASK, MASK, len(PIECES)))
    specs = [Spec(prompt, LENGTH, "deer", WHOLE | {"draft_length": 6}, sampling=SAMPLINGS["hot"]) for prompt in PROMPTS]
    answers = run(pair, vocabulary(), specs, pattern=pattern)
    assert [one.canvas.tolist() for one in answers] == [one.canvas.tolist() for one in alone(SAMPLINGS["hot"])]
    assert drafts.compared > 100


@pytest.mark.parametrize(("drafter", "halving"), crossed(DRAFTERS, [None, TWO_IN_FLIGHT]))
def test_prompts_in_chunks_and_shared_pages_change_no_text(drafter: str, halving: Halving | None) -> None:
    """A chunk is computed by both networks. Pages of requests with a drafter have its keys, too: others do not read
    them, nor it those of others."""
    pattern, prompt = drafted(DRAFTERS[drafter]), (PROMPTS[3] * 2)[:60]
    specs = [
        Spec([*prompt, token], LENGTH // 2, name, WHOLE) for token in (3, 4) for name in ("deer", "autoregressive")
    ]
    want = [one.canvas.tolist() for one in run(served(), vocabulary(), specs[1::2], pattern=SERVED)]
    limits = replace(LIMITS, prefix_sharing=True, prefill_tokens=24, step_tokens=120)
    scheduler = Scheduler(limits, vocabulary(), halving=halving, pattern=pattern)
    pair = small_pair(pattern)
    first, second = serve(scheduler, pair, specs), serve(scheduler, pair, specs, first=4)
    for answers in (first, second):
        assert [one.canvas.tolist() for one in answers[::2]] == [one.canvas.tolist() for one in answers[1::2]] == want
    assert [one.cached_tokens for one in second] == [48] * 4
    assert [one.cached_tokens for one in first[:2]] == [0, 0]


@pytest.mark.parametrize("halving", [None, TWO_IN_FLIGHT])
def test_a_limit_on_prompt_positions_counts_each_once_though_both_networks_compute_it(halving: Halving | None) -> None:
    """So a prompt takes the same steps with a drafter as without."""
    pattern, limits, found = drafted(), replace(LIMITS, prefill_tokens=24), list[list[int]]()
    for name in ("autoregressive", "deer"):
        scheduler = Scheduler(limits, vocabulary(), halving=halving, pattern=pattern)
        pair = Recording(small_pair(pattern))
        serve(scheduler, pair, [Spec([5, 6, 7, 8] * 20 + [token], 1, name, WHOLE) for token in (3, 4)])
        found.append([sum(row.tokens for row in plan.rows if not row.drafter) for plan in pair.plans])
    assert found[0] == found[1]
    assert len(found[0]) == (7 if halving is None else 12)


class Scripted:
    """A network of a pair, which proposes the same token everywhere."""

    def __init__(self, shift: int) -> None:
        self._executor = ScriptedExecutor(lambda slot, position: (3, 1.0), shift=shift)

    def launch(self, plan: StepPlan) -> Waiter:
        result = self._executor.execute(plan)
        return lambda: result


@pytest.mark.parametrize(("name", "chunk"), [("autoregressive", 256), ("deer", 192)])
def test_a_long_prompt_lets_streams_wait_for_what_both_networks_take_and_no_longer(name: str, chunk: int) -> None:
    """Ten streams have a step in 5 ms, and so one of 8.5 ms at most, in which the served network computes 128 positions
    in 5 ms, and each further one in 25 us. The drafter takes 1 ms and 5 us for its own."""
    drafter = StepCost([1, 128, 1128], [0.001, 0.001, 0.006])
    pacing = Pacing(StepCost([1, 128, 1128], [0.005, 0.005, 0.030], drafter=drafter))
    pacing.short_prompt = 100
    limits = replace(LIMITS, prefill_tokens=1024, max_model_len=512)
    scheduler = Scheduler(limits, vocabulary(), pattern=drafted(), pacing=pacing)
    pair = Pair(Scripted(shift=1), Scripted(shift=0), Ids(MASK, MASK, len(PIECES)))
    streams = [Spec(PROMPTS[0], LENGTH, "autoregressive", WHOLE) for _ in range(10)]
    for number, spec in enumerate(streams):
        add(scheduler, spec.request(number, scheduler.pattern))
    scheduler.commit(pair.execute(scheduler.plan() or StepPlan((), ())))
    add(scheduler, Spec([5, 6] * 200, LENGTH, name, WHOLE).request(10, scheduler.pattern))
    plan = scheduler.plan()
    assert plan is not None
    tokens = {drafts: sum(row.tokens for row in plan.rows if row.drafter is drafts) for drafts in (False, True)}
    assert tokens == {False: 10 + chunk, True: chunk if name == "deer" else 0}
    assert scheduler._in_flight[0].requests[-1].beside_prompt == StepSize()


@pytest.mark.parametrize(("last_s", "together"), [(0.001, 4), (1.0, 1)], ids=["fast drafter", "slow drafter"])
def test_clients_take_turns_by_the_time_that_drafts_take(last_s: float, together: int) -> None:
    """Drafts of one client that take no time go together, and one by one if they made the other wait."""
    drafter = StepCost([1, 1000], [0.001, last_s])
    budget = Budget(StepCost([1, 1000], [0.01, 0.01], drafter=drafter))
    scheduler = Scheduler(LIMITS, vocabulary(), budget, pattern=drafted())
    specs = [Spec(PROMPTS[0], LENGTH, "deer", WHOLE) for _ in range(4)]
    for number, spec in enumerate(specs):
        add(scheduler, replace(spec.request(number, scheduler.pattern), client="drafting"))
    other = Spec(PROMPTS[0], LENGTH, "autoregressive", WHOLE).request(4, scheduler.pattern)
    add(scheduler, replace(other, client="other"))
    plan = scheduler.plan()
    assert plan is not None
    assert sum(row.drafter for row in plan.rows) == together


def test_pages_are_whole_blocks_of_the_drafter() -> None:
    with pytest.raises(ValueError, match="--page-size 16 must be a multiple of the drafter's block of 5"):
        LIMITS.checked(drafted(Drafter(block_size=5)))


def test_an_end_token_in_a_draft_ends_the_answer() -> None:
    likely = Preferences(bias={END: 3.5})
    for sampling in SAMPLINGS.values():
        specs = {
            name: [Spec(prompt, LENGTH, name, preferences=likely, sampling=sampling) for prompt in PROMPTS]
            for name in ("autoregressive", "deer")
        }
        want = run(served(), vocabulary(), specs["autoregressive"], pattern=SERVED)
        found = run(small_pair(drafted()), vocabulary(), specs["deer"], pattern=drafted())
        for one, other in zip(found, want, strict=True):
            assert (one.streamed, one.outcome) == (other.streamed, other.outcome)
        assert any(END in one.canvas for one in want)


def test_ids_that_a_drafter_does_not_have_are_masks_for_it() -> None:
    ids = Ids(mask_id=9, drafter_mask_id=2, drafter_vocab_size=7)
    assert ids.for_drafter(np.array([1, 9, 6, 7, 2], np.int32)).tolist() == [1, 2, 6, 2, 2]


def test_open_positions_of_a_drafters_canvas_have_the_id_of_open_positions() -> None:
    """Its own mask may be a token of the served network."""

    class Masked:
        def launch(self, plan: StepPlan) -> Waiter:
            tokens = np.array([2, 4] if plan.rows else [], np.int32)
            return lambda: StepResult(tokens, tokens + 1, np.ones(len(tokens)), 0.0)

    pair = Pair(Masked(), Masked(), Ids(mask_id=9, drafter_mask_id=2, drafter_vocab_size=7))
    span = Span(0, 2, DeviceCommitRule(0, 1.0))
    row = Row(0, 0, 2, 2, (span,), GREEDY, 0, host_tokens=np.array([9, 4], np.int32))
    result = pair.execute(StepPlan((), (row._replace(slot=1), row._replace(drafter=True))))
    assert result.tokens.tolist() == [2, 4, 9, 4]
    assert result.proposals.tolist() == [3, 5, 3, 5]


@pytest.mark.parametrize(
    ("pattern", "params", "param", "reason"),
    [
        (SERVED, {}, "decoder", "start the server with --drafter"),
        (AttentionPattern(), {}, "decoder", "this one fills masks"),
        (drafted(), {"draft_length": 33}, "draft_length", "from 1 to 32"),
        (drafted(), {"rule": "klass"}, "rule", "takes no other rule"),
        (drafted(), {"threshold": 0.9}, "threshold", "has no parameter"),
    ],
)
def test_what_deer_cannot_do_is_refused(
    pattern: AttentionPattern, params: dict[str, object], param: str, reason: str
) -> None:
    with pytest.raises(ParamError, match=reason) as error:
        resolve("deer", params, 16, pattern)
    assert error.value.param == param


def test_the_rule_is_for_its_own_decoder() -> None:
    with pytest.raises(ParamError, match="rule must be one of") as error:
        resolve("fast-dllm", {"rule": "deer"}, 16)
    assert error.value.param == "rule"


def test_penalties_are_refused_since_several_tokens_are_checked_at_once() -> None:
    spec = Spec(PROMPTS[0], 8, "deer", preferences=Preferences(frequency=0.5))
    with pytest.raises(ParamError, match="frequency_penalty is not for decoder 'deer'"):
        run(small_pair(drafted()), vocabulary(), [spec], pattern=drafted())


def test_a_launch_that_fails_waits_for_the_network_that_was_launched_before_it() -> None:
    waited = []

    class Served:
        def launch(self, plan: StepPlan) -> Waiter:
            return lambda: waited.append(plan)  # type: ignore[return-value]

    tokens = np.arange(4, dtype=np.int32)
    row = Row(0, 0, 4, 4, (), GREEDY, 0, host_tokens=tokens)
    plan = StepPlan((), (row, row._replace(drafter=True)))
    with pytest.raises(RuntimeError, match="out of memory"):
        Pair(Served(), Failing(ORDINARY, at_launch=True), Ids(9, 9, 9), on_gpu=True).launch(plan)
    assert len(waited) == 1


ORDINARY, LOST = RuntimeError("out of memory"), DeviceLost("an illegal memory access")


class Failing:
    """A network of a GPU that raises at the launch, or at the end of its part of a step."""

    def __init__(self, error: Exception, at_launch: bool) -> None:
        self._error, self._at_launch = error, at_launch

    def launch(self, plan: StepPlan) -> Waiter:
        if self._at_launch:
            raise self._error
        return raising(self._error)


@pytest.mark.parametrize("at_launch", [False, True])
@pytest.mark.parametrize(("served", "drafter"), [(LOST, ORDINARY), (ORDINARY, LOST), (ORDINARY, ValueError("second"))])
def test_a_lost_device_ends_the_engine_whatever_the_other_network_raises(
    served: Exception, drafter: Exception, at_launch: bool
) -> None:
    """The engine goes on after any error but `DeviceLost`. Of two ordinary ones the first is reported, which at a
    launch is the drafter's."""
    tokens = np.arange(4, dtype=np.int32)
    row = Row(0, 0, 4, 4, (), GREEDY, 0, host_tokens=tokens)
    plan = StepPlan((), (row, row._replace(drafter=True)))
    pair = Pair(Failing(served, at_launch=False), Failing(drafter, at_launch), Ids(9, 9, 9), on_gpu=True)
    with pytest.raises((RuntimeError, ValueError)) as caught:
        pair.launch(plan)()
    first = drafter if at_launch else served
    assert caught.value is (LOST if LOST in (served, drafter) else first)
