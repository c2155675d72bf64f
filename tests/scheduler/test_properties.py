"""Whatever clients do and in whatever order, the scheduler keeps its books and every request ends once."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asynclane.scheduler.contract import StepPlan
from asynclane.scheduler.decoding.attention_pattern import AttentionPattern
from asynclane.scheduler.decoding.params import ParamError
from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.request import Outcome, Request, State
from asynclane.scheduler.scheduler import Scheduler
from asynclane.scheduler.sequence import Sequence

from ..support.fakes import BlockCausalExecutor, add, random_executor, random_proposals, vocabulary
from ..support.scale import ALL
from ..support.schedules import CASES, LIMITS, Schedules, decoder_for, random_schedules, scheduler_of

WITH_REPLICAS: list[tuple[str, dict[str, Any]]] = [
    ("leap", {"block_length": 8, "threshold": 0.4}),
    ("leap", {"block_length": 8, "threshold": 0.4, "cache": "d2"}),
    ("wino", {"block_length": 16, "cache": "dual"}),
    ("wino", {"block_length": 8, "cache": "prefix", "early_stop": False}),
    ("saber", {}),
]

CUT: list[tuple[str, dict[str, Any]]] = [
    ("asynclane", {"threshold": 0.4}),
    ("asynclane", {"threshold": 0.0, "block_length": 32, "lookahead": 0}),
    ("asynclane", {"threshold": 0.6, "lookahead": 32, "draft_threshold": 0.3, "max_lanes": 8, "min_fill": 0.0}),
    ("asynclane", {"reuse": False, "threshold": 0.5, "block_length": 16}),
    ("fast-dllm", {"block_length": 64, "threshold": 0.1}),
    ("fast-dllm", {"rule": "localleap", "block_length": 32}),
    ("slowfast", {"block_length": 32}),
    ("freedave", {}),
]


Schedules.TestCase.settings = random_schedules(24, 200)
TestSchedules = Schedules.TestCase


class TwoInFlight(Schedules):
    """The same while a second step is planned before the first is committed."""

    depth = 2


TwoInFlight.TestCase.settings = random_schedules(16, 120)
TestTwoInFlight = TwoInFlight.TestCase


class WithReplicas(TwoInFlight):
    """The same where replica rows follow the canvas."""

    limits, shifts = replace(LIMITS, max_model_len=160), False
    decoders = WITH_REPLICAS


class LongerThanAStep(TwoInFlight):
    """The same on a block-causal network, where most requests are longer than a step: no row sees stale keys."""

    limits = replace(LIMITS, step_tokens=24, prefill_tokens=12, prefix_sharing=True)
    pattern, shifts, decoders = AttentionPattern(block_size=4), False, CUT

    def new_executor(self) -> BlockCausalExecutor:
        executor = BlockCausalExecutor(random_proposals(7), self.pattern.block_size, self.limits.page_size)
        executor.length = self.limits.max_model_len
        return executor


LongerThanAStep.TestCase.settings = random_schedules(8, 120)
TestLongerThanAStep = LongerThanAStep.TestCase


WithReplicas.TestCase.settings = random_schedules(8, 60)
TestWithReplicas = WithReplicas.TestCase


def test_nobody_starves_when_every_row_fills_more_than_half_a_step() -> None:
    """Rows of which only one fits a step take turns, so all advance at the same pace."""
    scheduler = Scheduler(LIMITS, vocabulary())
    executor = random_executor(seed=1, end_share=0.0)
    decoder = resolve("llada", {"early_stop": False}, 40)
    sequences = [add(scheduler, Request(i, np.full(50, 6, np.int32), 40, decoder)) for i in range(3)]
    for _ in range(30):
        plan = scheduler.plan()
        assert plan is not None
        assert len(plan.rows) == 1
        scheduler.commit(executor.execute(plan))
        steps = [s.steps for s in sequences]
        assert max(steps) - min(steps) <= 1


def test_random_schedules_conserve_pages_and_end_every_request_once() -> None:
    for seed in range(2000 if ALL else 120):
        rng = random.Random(seed)
        depth = 1 + seed % 2
        shift = seed // 2 % 2
        scheduler, executor = scheduler_of(depth, shift), random_executor(seed, shift=shift)
        in_flight: deque[StepPlan] = deque()
        ended: list[int] = []
        sequences: list[Sequence] = []
        for number in range(rng.randint(1, 6)):
            name, params = rng.choice(CASES)
            length = rng.randint(1, 24)
            prompt = np.full(rng.randint(1, 30), 6, np.int32)
            sequences.append(add(scheduler, Request(number, prompt, length, decoder_for(name, params, length))))
        while True:
            while len(in_flight) < depth and (plan := scheduler.plan()) is not None:
                in_flight.append(plan)
            if not in_flight:
                break
            if rng.random() < 0.05:
                leaver = rng.choice(sequences)
                alive = leaver.state is not State.FINISHED
                scheduler.end(leaver.id, Outcome.ABORTED)
                if alive and leaver.state is State.FINISHED:  # it was in no step: gone without an update
                    ended.append(leaver.id)
            failed = rng.random() < 0.02
            plan = in_flight.popleft()
            updates = scheduler.fail() if failed else scheduler.commit(executor.execute(plan))
            assert failed or not any(update.outcome is Outcome.FAILED for update in updates), "a rule raised"
            ended += [u.request_id for u in updates if u.outcome is not None]
            scheduler.check_integrity()
        assert sorted(ended) == [s.id for s in sequences]
        assert scheduler.pages.used == scheduler.slots.used == 0


@pytest.mark.parametrize(
    ("name", "params", "lower"),
    [
        ("asynclane", {"siblings": "isolated", "block_length": 16, "lookahead": 32}, "max_lanes"),
        ("blockbatch", {}, "branches"),
        ("freedave", {"cache": "none"}, "draft_steps"),
        ("lopa", {"cache": "prefix"}, "branches"),
    ],
)
def test_rows_that_could_never_share_a_step_are_refused(name: str, params: dict[str, Any], lower: str) -> None:
    """They travel together: a request whose rows never fit would wait for ever."""
    with pytest.raises(ParamError, match=f"lower {lower}") as refused:
        Scheduler(LIMITS, vocabulary()).add(Request(0, np.full(40, 6, np.int32), 60, resolve(name, params, 60)))
    assert refused.value.param == lower
