"""Whoever leaves or fails takes nobody along: other answers are what they are alone, and no page leaks.

Rules that raise are in tests/scheduler/test_failing_rules.py; the driver checks slots and pages after every run.
"""

from __future__ import annotations

import pytest

from asynclane.scheduler import Outcome

from ..support.cases import TRIED, assert_same, cases, network, together
from ..support.driver import TWO_IN_FLIGHT, Answer
from ..support.scale import part

FEW = 50  # cases: a network that predicts the next token takes one or two decoders
HALVINGS = pytest.mark.parametrize("halving", [None, TWO_IN_FLIGHT], ids=["one-step", "two-steps-in-flight"])


def tried(name: str, seed: str) -> list[str]:
    """A part of the cases, or all of them if they are few."""
    return part(cases(name), 20 if len(cases(name)) > FEW else 2, seed=seed)


def assert_others_answered(name: str, some: list[str], answers: list[Answer], outcome: Outcome) -> None:
    """Some ended with `outcome`, and have streamed a beginning of their answers; others have answered."""
    rest = {case: answer for case, answer in zip(some, answers, strict=True) if answer.outcome is not outcome}
    assert 0 < len(rest) < len(some)
    assert_same(rest, rest.values(), together(name))
    for case, answer in zip(some, answers, strict=True):
        assert answer.streamed == together(name)[case].text[: len(answer.streamed)]


@HALVINGS
@pytest.mark.parametrize("name", TRIED)
def test_clients_that_leave_change_no_other_answer(name: str, halving: object) -> None:
    """After each number of steps, waiting, running or in flight."""
    some = tried(name, "leaving")
    leave_after = {number: number % 13 for number in range(0, len(some), 2)}
    answers = network(name).run(
        [cases(name)[case] for case in some], network(name).tight, leave_after=leave_after, halving=halving
    )
    assert_others_answered(name, some, answers, Outcome.ABORTED)


@HALVINGS
@pytest.mark.parametrize("name", TRIED)
def test_a_failed_step_ends_the_requests_that_it_carried_and_no_other(name: str, halving: object) -> None:
    some = tried(name, "failing")
    answers = network(name).run(
        [cases(name)[case] for case in some], network(name).tight, failing_step=9, halving=halving
    )
    assert_others_answered(name, some, answers, Outcome.FAILED)
