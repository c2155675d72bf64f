"""A decoder with a bug ends its own request. Other requests of the same steps get the same answers as alone."""

from __future__ import annotations

import itertools
from collections import deque
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import cache
from types import MethodType
from typing import Any

import numpy as np
import pytest

from asynclane.scheduler.contract import StepPlan
from asynclane.scheduler.decoding.commit import HOST_RULES
from asynclane.scheduler.decoding.params import ParamError
from asynclane.scheduler.decoding.resolve import Decoder, resolve
from asynclane.scheduler.memory.pages import Limits
from asynclane.scheduler.request import Outcome, Request
from asynclane.scheduler.scheduler import Scheduler
from asynclane.scheduler.sequence import Sequence
from asynclane.scheduler.step_cost import Halving

from ..support.driver import TWO_IN_FLIGHT
from ..support.fakes import ScriptedExecutor, add, vocabulary

pytestmark = pytest.mark.faults
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
SLOTS = sum(1 + resolve(name, params, LENGTH).branches for name, params in OTHERS)


def propose(slot: int, position: int) -> tuple[int, float]:
    return 6 + position % 3, (position * 7919 % 101) / 100


def wrong(part: object, method: str, call: int) -> object:
    """The `part` of a decoder, with a `method` or attribute that raises when it is used for the `call`-th time."""
    right, calls = getattr(type(part), method), itertools.count(1)

    def raising(self: object, *args: object) -> object:
        if next(calls) == call:
            raise RuntimeError("a bug in a rule")
        if isinstance(right, property):
            return right.fget(self)
        if isinstance(right, MethodType):  # of the class
            return right(*args)
        return right(self, *args) if callable(right) else right

    broken: object = property(raising)
    if callable(right):
        broken = classmethod(raising) if isinstance(right, MethodType) else raising
    object.__setattr__(part, "__class__", type("Wrong", (type(part),), {"__slots__": (), method: broken}))
    return part


def breaking(decoder: Decoder, axis: str, method: str, call: int = CALL) -> Decoder:
    """Its policy, or every cache or host rule that it makes, raises in one call of `method`."""
    right = getattr(decoder, axis)
    part = wrong(copy(right), method, call) if axis == "policy" else lambda: wrong(right(), method, call)
    return replace(decoder, **{axis: part})


def run(decoders: list[Decoder], halving: Halving | None = None) -> tuple[Scheduler, list[Sequence], list[int]]:
    """All at once, to their ends: the scheduler, the requests, and the ids of reported ends, in order."""
    scheduler = Scheduler(Limits(SLOTS, 400, 8, 2000, 128, 4), vocabulary(), halving=halving)
    executor = ScriptedExecutor(propose)
    sequences = [add(scheduler, Request(n, np.full(9, 6, np.int32), LENGTH, d)) for n, d in enumerate(decoders)]
    in_flight: deque[StepPlan] = deque()
    ended: list[int] = []
    while True:
        while len(in_flight) < (2 if halving else 1) and (plan := scheduler.plan()) is not None:
            in_flight.append(plan)
        updates = scheduler.lost()
        if not in_flight and not updates:
            break
        if in_flight:
            updates += scheduler.commit(executor.execute(in_flight.popleft()))
        ended += [update.request_id for update in updates if update.outcome is not None]
        scheduler.check_integrity()
    assert scheduler.idle
    assert scheduler.pages.used == scheduler.slots.used == 0
    return scheduler, sequences, ended


def results(sequence: Sequence) -> tuple[object, ...]:
    return sequence.canvas.tolist(), sequence.outcome, sequence.steps, sequence.computed_tokens, sequence.sent


BOTH = pytest.mark.parametrize("halving", [None, TWO_IN_FLIGHT], ids=["one-in-flight", "two"])


@cache
def others_alone() -> list[tuple[object, ...]]:
    return [results(run([resolve(*other, LENGTH)])[1][0]) for other in OTHERS]


_, LOCALLEAP, _, FREEDAVE, WINO, BLOCKBATCH, LLADA = OTHERS


@BOTH
@pytest.mark.parametrize(
    ("decoder", "axis", "method", "call", "steps"),
    [
        (LOCALLEAP, "host_rule", "choose", CALL, CALL - 1),
        (WINO, "host_rule", "choose", CALL, CALL - 1),
        (FREEDAVE, "host_rule", "choose_among", CALL, CALL - 1),
        (BLOCKBATCH, "host_rule", "observe", CALL, CALL - 1),
        (BLOCKBATCH, "host_rule", "over", 1, 1),  # once the tokens of a step were handed out
        (BLOCKBATCH, "host_rule", "over", 3, 3),
        (LLADA, "policy", "marks", CALL, CALL - 1),  # the lanes of all requests are read in one pass
        (WINO, "policy", "open", 1, 0),  # when it is admitted
        (WINO, "cache", "compute_range", CALL, CALL - 1),  # while a step is planned
        (WINO, "host_rule", "replicas", CALL, CALL - 1),
        (WINO, "policy", "advance", CALL, CALL - 1),  # after a step
        (WINO, "cache", "computed", CALL, CALL),
    ],
    ids=str,
)
def test_a_part_of_a_decoder_that_raises_ends_its_own_request_and_no_other(
    decoder: tuple[str, dict[str, Any]],
    axis: str,
    method: str,
    call: int,
    steps: int,
    halving: Halving | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The last of the others waits for what it leaves."""
    broken = breaking(resolve(*decoder, LENGTH), axis, method, call)
    others = [resolve(*other, LENGTH) for other in OTHERS]
    _, (first, *others_done), ended = run([broken, *others], halving)
    assert list(map(results, others_done)) == others_alone()
    assert (first.outcome, first.steps) == (Outcome.FAILED, steps)
    assert ended[0] == first.id
    assert sorted(ended) == [sequence.id for sequence in (first, *others_done)]
    (record,) = caplog.records
    assert "request 0" in record.getMessage()
    assert "a bug in a rule" in caplog.text


class Broken(RuntimeError):
    """The error that the rule of one request raises."""


def break_rule(sequence: Sequence) -> None:
    """From now on the rule of a request raises wherever it is read."""

    def raising(self: object, name: str) -> object:
        raise Broken

    assert sequence.host_rule is not None
    rule = sequence.host_rule.rule
    rule.__class__ = type("Broken", (type(rule),), {"__getattribute__": raising})


def batches() -> list[tuple[str, dict[str, Any]]]:
    """Decoders with each host rule; lanes have several segments in a step."""
    named = [(name, {"block_length": 8}) for name in ("saber", "wino", "leap", "freedave", "lopa", "llada2")]
    params: dict[str, Any] = {"block_length": 8, "lookahead": 8}
    found = [*named, ("fast-dllm", {"block_length": 8, "rule": "editing"})]
    for rule in HOST_RULES:
        with suppress(ParamError):
            resolve("asynclane", {**params, "rule": rule}, LENGTH)
            found.append(("asynclane", {**params, "rule": rule}))
    return found


@pytest.mark.parametrize("decoder", batches(), ids=lambda decoder: decoder[1].get("rule", decoder[0]))
@pytest.mark.parametrize("broken", [0, 2])
def test_a_rule_that_raises_ends_its_own_request_and_no_other_of_its_kind(
    decoder: tuple[str, dict[str, Any]], broken: int
) -> None:
    """They are decided in one call, and nothing that this call has done before it raised counts twice."""
    name, params = decoder
    lengths = [24, 16, 20, 24]

    def answers(numbers: list[int], breaking_step: int) -> dict[int, tuple[object, ...]]:
        scheduler = Scheduler(Limits(64, 800, 8, 2000, 128, 4), vocabulary())
        executor = ScriptedExecutor(propose)
        sequences = {
            n: add(scheduler, Request(n, np.full(9, 6, np.int32), lengths[n], resolve(name, params, lengths[n])))
            for n in numbers
        }
        for step in itertools.count(1):
            if (plan := scheduler.plan()) is None:
                break
            if step == breaking_step and sequences[broken].host_rule is not None:
                break_rule(sequences[broken])
            scheduler.commit(executor.execute(plan))
        return {n: results(sequence) for n, sequence in sequences.items()}

    together = answers([0, 1, 2, 3], breaking_step=3)
    if resolve(name, params, LENGTH).host_rule is not None:
        assert together[broken][1] is Outcome.FAILED
    for number in {0, 1, 2, 3} - {broken}:
        assert together[number] == answers([number], breaking_step=0)[number]


def test_a_request_that_fails_makes_room_for_the_next_in_the_same_plan() -> None:
    """With one slot: whoever plans until there is nothing left has served everyone."""
    scheduler = Scheduler(Limits(1, 100, 8, 500, 128, 4), vocabulary())
    executor = ScriptedExecutor(propose)
    decoders = [breaking(resolve("llada", {}, LENGTH), "cache", "compute_range", 1), resolve("llada", {}, LENGTH)]
    broken, good = (add(scheduler, Request(n, np.full(9, 6, np.int32), LENGTH, d)) for n, d in enumerate(decoders))
    while (plan := scheduler.plan()) is not None:
        scheduler.commit(executor.execute(plan))
    assert (broken.outcome, good.outcome) == (Outcome.FAILED, Outcome.LENGTH)
    assert scheduler.idle


def test_the_last_request_may_fail_while_it_is_planned() -> None:
    """Nothing else runs that would carry its end."""
    scheduler, (only,), ended = run([breaking(resolve("llada", {}, LENGTH), "cache", "compute_range", 1)])
    assert (only.outcome, ended) == (Outcome.FAILED, [only.id])
    assert scheduler.lost() == []
