"""Clients take turns: one that wants everything does not keep the others waiting."""

from __future__ import annotations

import functools
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.memory.pages import Limits
from asynclane.scheduler.request import Request
from asynclane.scheduler.scheduler import QueueFull, Scheduler

from ..support.fakes import IDS, random_executor, vocabulary

LIMITS = Limits(slots=32, pages=48, page_size=2, step_tokens=2000, max_model_len=96, max_queue=64)
ORDINARY = [f"client {number}" for number in range(10)]
LONG = 32  # tokens of an answer that a greedy client wants


class Simulation:
    """A scheduler with a clock: a step takes as long as the positions that it computes."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.scheduler = Scheduler(limits, vocabulary())
        self.executor = random_executor(1, end_share=0.0)
        self.now = 0
        self.number = 0
        self.sent: dict[int, tuple[str, int]] = {}  # requests that have not ended: their client, and when they came
        self.times: dict[str, list[int]] = {}  # of each answer, from its request on, by client

    def send(self, client: str, tokens: int = 8, bundle: str | None = None, weight: float = 1.0) -> int:
        """A request of 6 pages and 8 steps, or with more tokens, of more."""
        self.number += 1
        prompt, decoder = np.full(4, IDS["w"], np.int32), resolve("llada", {"early_stop": False}, tokens)
        given = Request(self.number, prompt, tokens, decoder, client=client, weight=weight, bundle=bundle)
        self.scheduler.add(given)
        self.sent[self.number] = client, self.now
        return self.number

    def step(self) -> None:
        plan = self.scheduler.plan()
        assert plan is not None
        self.now += plan.tokens
        for update in self.scheduler.commit(self.executor.execute(plan)):
            if update.outcome is not None:
                client, since = self.sent.pop(update.request_id)
                self.times.setdefault(client, []).append(self.now - since)
        self.scheduler.check_integrity()

    def open(self) -> Counter[str]:
        """The requests that have not ended, by client."""
        return Counter(client for client, _ in self.sent.values())

    def running(self) -> list[int]:
        return [number for number in self.sent if number in self.scheduler.running]


def one_after_the_other(sim: Simulation) -> None:
    """HTTP requests for sixteen long answers."""
    if not sim.open()["greedy"]:
        for _ in range(16):
            sim.send("greedy", LONG, bundle=f"at {sim.now}")


def many_at_once(sim: Simulation) -> None:
    while sim.open()["greedy"] < 24:
        sim.send("greedy", LONG)


@functools.cache
def mean_times(limits: Limits, greedy: Callable[[Simulation], None] | None, ahead: bool = False) -> list[float]:
    """The mean time of an answer for each of ten clients that send one request after the other. Their first answers do
    not count: they may have to wait for what a client that was alone has begun, since nothing is preempted."""
    sim = Simulation(limits)
    while sim.now < 12_000:
        for client in [] if ahead and not sim.now else ORDINARY:
            if not sim.open()[client]:
                sim.send(client)
        if greedy is not None:
            greedy(sim)
        sim.step()
    return [statistics.mean(sim.times[client][1:]) for client in ORDINARY]


@pytest.mark.parametrize(
    "scarce", [{}, {"slots": 6, "pages": 480}, {"pages": 480}], ids=["pages", "slots", "time of the device"]
)
@pytest.mark.parametrize("ahead", [False, True], ids=["with the others", "before the others"])
@pytest.mark.parametrize("greedy", [one_after_the_other, many_at_once])
def test_beside_a_greedy_client_ten_others_wait_at_most_twice_as_long(
    scarce: dict[str, Any], ahead: bool, greedy: Callable[[Simulation], None]
) -> None:
    limits = replace(LIMITS, **scarce)
    assert max(mean_times(limits, greedy, ahead)) <= 2 * min(mean_times(limits, None))


def test_alone_a_client_has_everything_but_not_for_one_http_request() -> None:
    alone, sim = Simulation(), Simulation()
    for _ in range(16):
        alone.send("greedy")
        sim.send("greedy", bundle="all")
    alone.step()
    sim.step()
    assert (alone.scheduler.pages.used, sim.scheduler.pages.used) == (48, 24)
    others = [sim.send("greedy"), sim.send("other")]
    sim.step()
    assert {*others} <= {*sim.running()}, "half of the pages is free for other requests at any time"


def test_while_others_wait_a_client_has_half() -> None:
    sim = Simulation()
    for client in ["first", "second"] * 8:
        sim.send(client)
    sim.step()
    assert Counter(sim.sent[number][0] for number in sim.running()) == {"first": 4, "second": 4}


def test_a_request_larger_than_half_of_the_pages_runs_all_the_same() -> None:
    sim = Simulation()
    large = sim.send("greedy", 80, bundle="large")
    sim.send("other")
    sim.step()
    assert large in sim.running()


def test_further_answers_of_an_http_request_go_after_other_clients() -> None:
    sim = Simulation(replace(LIMITS, slots=4))
    first, second = sim.send("greedy", bundle="both"), sim.send("greedy", bundle="both")
    others = [sim.send(client) for client in ORDINARY[:6]]
    sim.step()
    assert sim.running() == [first, *others[:3]]
    began = set(sim.running())
    while second not in began:
        sim.step()
        began |= set(sim.running())
    assert began >= set(others)


def test_the_requests_of_a_client_keep_their_order() -> None:
    sim = Simulation(replace(LIMITS, slots=2))
    mine = [sim.send("one", tokens) for tokens in (16, 2, 8, 2)]
    theirs = sim.send("two")
    began = dict.fromkeys(sim.running())
    while sim.sent:
        sim.step()
        began |= dict.fromkeys(sim.running())
    assert [number for number in began if number != theirs] == mine


def test_turns_are_in_proportion_to_weights() -> None:
    sim = Simulation()
    for _ in range(200):
        for client, weight in (("light", 1.0), ("heavy", 2.0), ("third", 1.0)):
            while sim.open()[client] < 9:
                sim.send(client, weight=weight)
        sim.step()
    assert len(sim.times["heavy"]) == 2 * len(sim.times["light"]) > 20


def test_a_client_that_fills_the_queue_keeps_nobody_out() -> None:
    sim = Simulation(replace(LIMITS, slots=1, max_queue=12))

    def fill(client: str) -> int:
        for count in range(100):
            try:
                sim.send(client)
            except QueueFull:
                return count
        raise AssertionError("no limit")

    assert fill("greedy") == 13, "one runs, and the queue is full"
    assert [fill(client) for client in ("second", "third", "fourth")] == [6, 4, 3]
    with pytest.raises(QueueFull, match="12 of the 25 requests that wait are this client's"):
        sim.send("greedy")
