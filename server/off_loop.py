"""Work that would keep the event loop for long runs in threads, a few at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from .errors import Overloaded
from .shares import Shares

T = TypeVar("T")


class OffLoop:
    """Runs work of more than `short` bytes, characters or tokens in threads, `at_once` at most. Clients take turns.
    While `max_waiting` wait, a client may still have its share of them."""

    def __init__(self, short: int, at_once: int, max_waiting: int) -> None:
        self._short = short
        self._free = at_once
        self._shares = Shares(max_waiting)
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by client; the first has the next turn

    async def run(self, client: str, size: int, work: Callable[[], T]) -> T:
        """The result of `work`, which is not begun if this is cancelled before its turn. Raises `Overloaded`."""
        if size <= self._short:
            return work()
        await self._turn(client)
        # A thread cannot be cancelled: it has its turn until it ends.
        running = asyncio.ensure_future(asyncio.to_thread(work))
        running.add_done_callback(self._end)
        await asyncio.wait((running,))
        try:
            return running.result()
        finally:
            del running  # an exception has this frame, and would keep what was read

    async def _turn(self, client: str) -> None:
        if self._free:
            self._free -= 1
            return
        if not self._shares.admits(client):
            raise Overloaded("too many long requests wait to be read")
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        self._shares.take(client)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came at the same time
                self._pass_on()
            elif turn in self._waiting.get(client, ()):
                self._waiting[client].remove(turn)
                if not self._waiting[client]:
                    del self._waiting[client]
            raise
        finally:
            self._shares.give(client)

    def _end(self, running: asyncio.Future[Any]) -> None:
        if not running.cancelled():
            running.exception()  # which nobody may be left to see
        self._pass_on()

    def _pass_on(self) -> None:
        """Give the turn to the first client that waits, which is then the last."""
        while self._waiting:
            client = next(iter(self._waiting))
            turns = self._waiting.pop(client)
            turn = turns.popleft()
            if turns:
                self._waiting[client] = turns
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._free += 1
