"""Loads on a server, in which each request is timed: so many at once, or so many arrivals a second."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ...clients import (
    NEVER,
    AsyncClient,
    AsyncStream,
    ClientError,
    Closed,
    ConnectionFailed,
    StatusError,
    StreamError,
    TimedOut,
    UnexpectedReply,
    Usage,
)
from ...clients.errors import one_line
from .plan import Level, Plan, Target

Body = Mapping[str, Any]

KINDS: Mapping[type[Exception], str] = {
    ConnectionFailed: "connection failed",
    TimedOut: "timed out",
    StreamError: "stream broke off",
    UnexpectedReply: "not this API",
    Closed: "closed",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """`kind` is counted: a few words that are the same for all failures of a kind."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One request, in seconds of one clock. It is timed from when it was due, even if this program sent it later.

    `first_s` is the time of the first text, and `began_s` that of the first text or thought; None if there was none.
    """

    due_s: float
    end_s: float
    first_s: float | None = None
    began_s: float | None = None
    usage: Usage | None = None
    failure: Failure | None = None


Ask = Callable[[Body, float], Coroutine[Any, Any, None]]


class Prober:
    """Sends a streamed request and returns its sample."""

    def __init__(self, client: AsyncClient, target: Target, model: str) -> None:
        self._client = client
        self._target = target
        self.model = model

    async def ask(self, body: Body, due_s: float) -> Sample:
        first_s: float | None = None
        began_s: float | None = None
        try:
            async with asyncio.timeout(self._target.timeout_s), self._stream(body) as stream:
                async for delta in stream:
                    now_s = time.perf_counter()
                    began_s = began_s or (now_s if delta.text or delta.reasoning else None)
                    first_s = first_s or (now_s if delta.text else None)
            return Sample(due_s, time.perf_counter(), first_s, began_s, stream.usage)
        except TimeoutError:
            failure = Failure(KINDS[TimedOut], f"no end within {self._target.timeout_s:g} s")
        except (ClientError, ValueError) as error:
            failure = Failure(_kind(error), str(error))
        return Sample(due_s, time.perf_counter(), first_s, began_s, failure=failure)

    def _stream(self, body: Body) -> AsyncStream:
        rest = {name: value for name, value in body.items() if name not in ("messages", "prompt")}
        if self._target.chat:
            return self._client.stream_chat(body["messages"], model=self.model, extra=rest)
        return self._client.stream_complete(body["prompt"], model=self.model, extra=rest)


def _kind(error: ClientError | ValueError) -> str:
    if isinstance(error, StatusError):
        return f"{error.status} {one_line(error.code or '')}".strip()
    return KINDS.get(type(error), "cannot be sent")


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[Prober]:
    """Open a client without retries: a refusal is a result here. Raises `ClientError` if the server lists no model."""
    async with AsyncClient(target.url, api_key=target.api_key, timeout=target.timeout_s, retry=NEVER) as client:
        model = target.model or (await client.models())[0].id
        yield Prober(client, target, model)


async def run_level(prober: Prober, plan: Plan, level: Level, progress: Callable[[], None]) -> list[Sample]:
    """Return the samples of a level in the order in which they ended. `progress` is called for each."""
    samples: list[Sample] = []
    started = time.perf_counter()
    until = float("inf") if plan.bounds.duration_s is None else started + plan.bounds.duration_s
    bodies = itertools.islice(itertools.cycle(plan.bodies), plan.bounds.requests_at(level))

    async def ask(body: Body, due_s: float) -> None:
        samples.append(await prober.ask(body, due_s))
        progress()

    if level.rate is not None:
        await _open_loop(ask, bodies, poisson(level.rate, random.Random(plan.seed), started), until)
    else:
        await _closed_loop(ask, bodies, level.concurrency or 1, plan.stagger_s, until)
    return samples


def poisson(rate: float, r: random.Random, start_s: float) -> Iterator[float]:
    """Yield the times of independent arrivals, `rate` a second: gaps are exponential."""
    return itertools.accumulate(iter(lambda: r.expovariate(rate), None), initial=start_s)


async def _open_loop(ask: Ask, bodies: Iterator[Body], arrivals: Iterable[float], until: float) -> None:
    """Send each request when it is due, whether or not earlier ones have ended."""
    async with asyncio.TaskGroup() as group:
        for due_s in itertools.takewhile(lambda due_s: due_s < until, arrivals):
            body = next(bodies, None)
            if body is None:
                break
            await asyncio.sleep(due_s - time.perf_counter())
            group.create_task(ask(body, due_s))


async def _closed_loop(ask: Ask, bodies: Iterator[Body], count: int, stagger_s: float, until: float) -> None:
    """Run `count` users, who share the requests. Each sends the next as soon as its answer has ended."""

    async def user(number: int) -> None:
        await asyncio.sleep(min(number * stagger_s / count, until - time.perf_counter()))
        while time.perf_counter() < until and (body := next(bodies, None)) is not None:
            await ask(body, time.perf_counter())

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(user(number))
