"""Long work leaves the event loop, a few at once."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from asynclane.server.errors import Overloaded
from asynclane.server.off_loop import OffLoop


async def test_short_work_stays_on_the_event_loop() -> None:
    off_loop = OffLoop(short=10, at_once=1, max_waiting=1)
    threads = [await off_loop.run("a", size, threading.current_thread) for size in (10, 11)]
    assert [thread is threading.current_thread() for thread in threads] == [True, False]


async def test_so_many_run_at_once_so_many_wait_and_more_are_refused() -> None:
    off_loop = OffLoop(short=0, at_once=2, max_waiting=3)
    running, most, opened, lock = 0, 0, threading.Event(), threading.Lock()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        assert opened.wait(30)
        with lock:
            running -= 1

    tasks = [asyncio.create_task(off_loop.run("a", 1, work)) for _ in range(5)]
    while running < 2:
        await asyncio.sleep(0.001)
    with pytest.raises(Overloaded):
        await off_loop.run("a", 1, work)
    tasks.pop().cancel()  # who leaves gives its place up
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(off_loop.run("a", 1, work)))
    opened.set()
    await asyncio.gather(*tasks)
    assert most == 2


def note(opened: threading.Event, done: list[Any], item: object) -> None:
    assert opened.wait(30)
    done.append(item)


async def test_clients_take_turns_and_only_one_beyond_its_share_is_refused() -> None:
    off_loop, opened, done = OffLoop(short=0, at_once=1, max_waiting=6), threading.Event(), list[str]()

    async def run(client: str) -> None:
        await off_loop.run(client, 1, partial(note, opened, done, client))

    tasks = [asyncio.create_task(run("a")) for _ in range(7)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await run("a")
    tasks += [asyncio.create_task(run(client)) for client in "bbc"]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await run("b")
    opened.set()
    await asyncio.gather(*tasks)
    assert "".join(done) == "aabcab" + "aaaa"


async def test_work_of_clients_that_have_left_is_not_begun_and_a_thread_keeps_its_turn() -> None:
    off_loop, opened, done = OffLoop(short=0, at_once=1, max_waiting=3), threading.Event(), list[int]()
    tasks = [asyncio.create_task(off_loop.run("a", 1, partial(note, opened, done, at))) for at in range(4)]
    await asyncio.sleep(0.01)
    for task in tasks[:3]:
        task.cancel()
    await asyncio.wait(tasks[:3])
    assert not tasks[3].done(), "the first still runs"
    assert len(off_loop._waiting["a"]) == 1
    opened.set()
    await tasks[3]
    assert done == [0, 3]
    assert not off_loop._waiting
    await off_loop.run("a", 1, lambda: done.append(4))


async def test_a_turn_that_comes_to_a_client_that_is_leaving_goes_to_the_next() -> None:
    off_loop, ran = OffLoop(short=0, at_once=1, max_waiting=3), list[str]()
    await off_loop._turn("holder")
    tasks = [asyncio.create_task(off_loop.run(client, 1, partial(ran.append, client))) for client in "abc"]
    await asyncio.sleep(0)
    tasks[0].cancel()  # before its turn
    off_loop._pass_on()
    tasks[1].cancel()  # after it, in the same step of the event loop
    await asyncio.wait(tasks)
    assert ran == ["c"]
    assert off_loop._free == 1
