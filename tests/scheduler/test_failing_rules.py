"""A rule with a bug ends the one request that asked for it: whoever shares its steps gets what they get alone."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asynclane.scheduler.budget import Halving, StepCost
from asynclane.scheduler.contract import StepPlan
from asynclane.scheduler.decoders import Decoder, resolve
from asynclane.scheduler.pages import Limits
from asynclane.scheduler.request import Outcome, Request
from asynclane.scheduler.rules import Judge
from asynclane.scheduler.scheduler import Scheduler
from asynclane.scheduler.sequence import Sequence

from ..fakes import ScriptedExecutor, vocabulary

LENGTH = 24
CALL = 3  # in which the rule raises
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("asynclane", {"block_length": 8, "lookahead": 8, "threshold": 0.9}),
    ("asynclane", {"rule": "localleap", "block_length": 8, "lookahead": 8}),
    ("fast-dllm", {"block_length": 8}),
    ("freedave", {"block_length": 8, "draft_steps": 2}),
    ("wino", {"block_length": 8}),
    ("blockbatch", {"branches": 2, "smallest_block": 2}),
    ("llada", {"cache": "prefix"}),
]
SLOTS = sum(1 + resolve(name, knobs, LENGTH).branches for name, knobs in OTHERS)


def propose(slot: int, position: int) -> tuple[int, float]:
    return 6 + position % 3, (position * 7919 % 101) / 100


def breaking(decoder: Decoder, method: str) -> Decoder:
    """Its judges raise in one call of `method`."""

    def made() -> Judge:
        assert decoder.judge is not None
        judge, calls = decoder.judge(), itertools.count(1)
        right = getattr(judge, method)

        def wrong(*args: object) -> object:
            if next(calls) == CALL:
                raise RuntimeError("a bug in a rule")
            return right(*args)

        setattr(judge, method, wrong)
        return judge

    return replace(decoder, judge=made)


def run(decoders: list[Decoder], halving: Halving | None = None) -> tuple[Scheduler, list[Sequence], list[int]]:
    """All at once, to their ends: the scheduler, the requests, and the ids of those whose end was told, in order."""
    scheduler = Scheduler(Limits(SLOTS, 400, 8, 2000, 128, 4), vocabulary(), halving=halving)
    executor = ScriptedExecutor(propose)
    sequences = [scheduler.add(Request(n, np.full(9, 6, np.int32), LENGTH, d)) for n, d in enumerate(decoders)]
    flights: deque[StepPlan] = deque()
    ended: list[int] = []
    while True:
        while len(flights) < (2 if halving else 1) and (plan := scheduler.plan()) is not None:
            flights.append(plan)
        if not flights:
            break
        updates = scheduler.commit(executor.execute(flights.popleft()))
        ended += [update.sequence.id for update in updates if update.outcome is not None]
        scheduler.check_integrity()
    assert scheduler.idle
    assert scheduler.pages.held == scheduler.slots.held == 0
    return scheduler, sequences, ended


def facts(sequence: Sequence) -> tuple[object, ...]:
    return sequence.canvas.tolist(), sequence.outcome, sequence.steps, sequence.computed_tokens, sequence.sent


@pytest.mark.parametrize("halving", [None, Halving(StepCost([1, 1000], [0.001, 1.0]))], ids=["one-in-flight", "two"])
@pytest.mark.parametrize(
    ("name", "knobs", "method"),
    [
        ("fast-dllm", {"rule": "localleap", "block_length": 8}, "choose"),
        ("asynclane", {"rule": "localleap", "block_length": 8, "lookahead": 8}, "choose"),
        ("wino", {"block_length": 8}, "choose"),
        ("freedave", {"block_length": 8, "draft_steps": 2}, "choose_among"),
        ("blockbatch", {"branches": 2, "smallest_block": 2}, "observe"),
    ],
    ids=str,
)
def test_a_rule_that_raises_ends_its_own_request_and_no_other(
    name: str, knobs: dict[str, Any], method: str, halving: Halving | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The last of the others waits for what it leaves."""
    others = [resolve(*other, LENGTH) for other in OTHERS]
    alone = [run([other])[1][0] for other in others]
    _, (broken, *crowd), ended = run([breaking(resolve(name, knobs, LENGTH), method), *others], halving)
    assert list(map(facts, crowd)) == list(map(facts, alone))
    assert (broken.outcome, broken.steps) == (Outcome.FAILED, CALL - 1)
    assert ended[0] == broken.id
    assert sorted(ended) == [sequence.id for sequence in (broken, *crowd)]
    (record,) = caplog.records
    assert "request 0" in record.getMessage()
    assert "a bug in a rule" in caplog.text
