"""The counts of a front end in a process of its own, on their way to the engine, which has the metrics of all."""

from __future__ import annotations

import asyncio
from collections import Counter

from ..engine.messages import AnswerTimes, Counts
from ..logs import lines_dropped
from ..metrics import Gaps
from .client import EngineClient

EVERY_S = 0.25


class Relay:
    """Counts as `metrics.Metrics` does, and sends what it has counted to the engine a few times a second."""

    def __init__(self) -> None:
        self.engine: EngineClient | None = None  # once there is one
        self._responses = Counter[int]()
        self._answers: list[AnswerTimes] = []
        self._gaps = Gaps()
        self._lines_dropped = 0
        self._timer: asyncio.TimerHandle | None = None

    async def scrape(self) -> bytes:
        """The metrics of all processes. Raises `errors.EngineDown`."""
        assert self.engine is not None
        self._send()
        return await self.engine.exposition()

    def http_response(self, status: int) -> None:
        self._responses[status] += 1
        self._send_soon()

    def chunk_read(self, gap_s: float) -> None:
        self._gaps.observe(gap_s)
        self._send_soon()

    def answer_read(self, answer: AnswerTimes) -> None:
        self._answers.append(answer)
        self._send_soon()

    def _send_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._send)

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        dropped = lines_dropped()
        responses, answers, gaps = tuple(self._responses.items()), tuple(self._answers), self._gaps.take()
        counts = Counts(responses, answers, dropped - self._lines_dropped, *gaps)
        self._responses.clear()
        self._answers.clear()
        self._lines_dropped = dropped
        if self.engine is not None and counts != Counts():
            self.engine.send([counts])
