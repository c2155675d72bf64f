"""Long work leaves the event loop, a few at once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from asynclane.server.errors import Overloaded
from asynclane.server.off_loop import OffLoop


async def test_short_work_stays_on_the_event_loop() -> None:
    off_loop = OffLoop(short=10, at_once=1, max_waiting=1)
    threads = [await off_loop.run(size, threading.current_thread) for size in (10, 11)]
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

    tasks = [asyncio.create_task(off_loop.run(1, work)) for _ in range(5)]
    while running < 2:
        await asyncio.sleep(0.001)
    with pytest.raises(Overloaded):
        await off_loop.run(1, work)
    tasks.pop().cancel()  # who leaves gives its place up
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(off_loop.run(1, work)))
    opened.set()
    await asyncio.gather(*tasks)
    assert most == 2
