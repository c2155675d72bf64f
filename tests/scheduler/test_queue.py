"""As many requests wait as the limits allow, and no more, whatever it is that they wait for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.memory.pages import Limits
from asynclane.scheduler.request import Outcome, Request, State
from asynclane.scheduler.scheduler import QueueFull, Scheduler

from ..support.fakes import IDS, add, vocabulary

ROOM = {"page_size": 8, "step_tokens": 512, "max_model_len": 64}
PAGES = 6  # of one of the requests
LIMITS: dict[str, Callable[[int], Limits]] = {
    "slots": lambda queue: Limits(slots=2, pages=20 * PAGES, max_queue=queue, **ROOM),
    "pages": lambda queue: Limits(slots=20, pages=2 * PAGES + 5, max_queue=queue, **ROOM),
    "both": lambda queue: Limits(slots=2, pages=2 * PAGES, max_queue=queue, **ROOM),
}


def request(number: int) -> Request:
    return Request(number, np.full(16, IDS["w"], np.int32), 32, resolve("llada", {}, 32))


@pytest.mark.parametrize("scarce", LIMITS)
@pytest.mark.parametrize("queue", [0, 1, 3])
@pytest.mark.parametrize("planned", [False, True])
def test_those_behind_two_that_have_a_place_wait_up_to_the_limit(scarce: str, queue: int, planned: bool) -> None:
    scheduler = Scheduler(LIMITS[scarce](queue), vocabulary())
    taken = []
    for number in range(2 + queue):
        taken.append(add(scheduler, request(number)))
        if planned and number == 1:
            assert scheduler.plan() is not None
    for number in range(3):
        with pytest.raises(QueueFull, match=f"{queue} of {queue} requests wait"):
            scheduler.add(request(9 + number))
    assert [sequence.state is State.WAITING for sequence in taken] == [False] * 2 + [True] * queue
    scheduler.check_integrity()


def test_a_place_that_was_given_back_is_taken_before_anybody_is_refused() -> None:
    scheduler = Scheduler(LIMITS["pages"](1), vocabulary())
    first, _, third = (add(scheduler, request(number)) for number in range(3))
    scheduler.end(first.id, Outcome.ABORTED)
    fourth = add(scheduler, request(3))
    assert (third.state, fourth.state) == (State.RUNNING, State.WAITING)
    with pytest.raises(QueueFull):
        scheduler.add(request(4))
