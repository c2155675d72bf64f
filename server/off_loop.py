"""Work that would keep the event loop for long runs in threads, a few at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from .errors import Overloaded

T = TypeVar("T")


class OffLoop:
    """Runs work of more than `short` bytes, characters or tokens in threads, `at_once` at most. Others wait for their
    turn, `max_waiting` at most."""

    def __init__(self, short: int, at_once: int, max_waiting: int) -> None:
        self._short = short
        self._turns = asyncio.Semaphore(at_once)
        self._max_waiting = max_waiting
        self._waiting = 0

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """The result of `work`. Raises `Overloaded`."""
        if size <= self._short:
            return work()
        if self._waiting >= self._max_waiting:
            raise Overloaded(f"{self._waiting} long requests wait to be read")
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        try:
            return await asyncio.to_thread(work)
        finally:
            self._turns.release()
