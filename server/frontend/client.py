"""The engine as a front end sees it: the same in the engine's own process and in another one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from .. import errors
from ..engine.messages import (
    Abort,
    AnswerOptions,
    Exposition,
    Failed,
    Failure,
    Fault,
    Free,
    FromEngine,
    Health,
    Progress,
    Reload,
    Reserve,
    Reserved,
    Scrape,
    Stop,
    Submit,
    ToEngine,
)
from ..metrics import AnswerMetrics
from ..text.tokenizer import Tokenizer
from .stream import AnswerReader, AnswerStream

PLACE_S = 5.0  # a body that comes slower has no place in the queue until it is there


class Port(Protocol):
    """The engine's end of a connection."""

    def take(self, messages: Iterable[ToEngine]) -> None: ...


class Host(Protocol):
    """An engine in this process."""

    def connect(self, send: Callable[[list[FromEngine]], None]) -> Port: ...


class EngineClient:
    """Implements `AnswerSource` over messages. `send` passes them on to the engine, in their order."""

    def __init__(self, text: Tokenizer, metrics: AnswerMetrics) -> None:
        self.health = Health(ready=False)
        self.send: Callable[[list[ToEngine]], None] = lambda messages: None
        self.ended: Callable[[str], None] = lambda reason: None  # called once the engine has failed for good
        self.stop: Callable[[], None] = lambda: None
        self.reload: Callable[[], None] = lambda: None
        self._text = text
        self._metrics = metrics
        self._lost = False  # the connection
        self._turns = asyncio.Lock()  # to read many tokens
        self._numbers = itertools.count()
        self._streams: dict[int, AnswerStream] = {}
        self._replies: dict[int, asyncio.Future[Any]] = {}

    def join(self, host: Host) -> None:
        """Connect to an engine in this process."""
        port = host.connect(self.take)
        self.send = port.take

    def take(self, messages: Iterable[FromEngine]) -> None:
        """Take in messages of the engine."""
        for message in messages:
            match message:
                case Progress() | Failed():
                    stream = self._streams.get(message.request_id)
                    if stream is not None:
                        stream.put(message)
                case Reserved():
                    self._reply(message.place_id, message.retry_after_s)
                case Exposition():
                    self._reply(message.scrape_id, message.text)
                case Health():
                    self._set_health(message)
                case Reload():
                    self.reload()
                case Stop():
                    self.stop()

    def lose(self, reason: str) -> None:
        """The connection is lost: the engine cannot answer any more."""
        if self.health.failure is None:
            self._set_health(Health(ready=False, failure=reason))
        for request_id, stream in self._streams.items():
            stream.put(Failed(request_id, self._down()))
        self._lost = True
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(errors.EngineDown(self._down().message))

    async def reserve(self, client: str) -> Place:
        """See `AnswerSource`."""
        place = Place(next(self._numbers), self)
        if self.health.failure is None:
            try:
                retry_after_s = await self._request(place.number, Reserve(place.number, client))
            except asyncio.CancelledError:
                self.send([Free(place.number)])
                raise
            if retry_after_s is not None:
                raise errors.Overloaded("the queue is full", retry_after_s=retry_after_s)
            place.hold()
        return place

    def submit(self, prompt: list[int], options: AnswerOptions) -> AnswerStream:
        """See `AnswerSource`."""
        request_id = next(self._numbers)

        def abort(failed: bool) -> None:
            if self._streams.pop(request_id, None) is not None and not stream.complete:
                self.send([Abort(request_id, failed)])

        stream = AnswerStream(AnswerReader(self._text, options), abort, self._metrics, self._turns)
        self._streams[request_id] = stream
        if self.health.failure is None:
            self.send([Submit(request_id, tuple(prompt), options)])
        else:
            stream.put(Failed(request_id, self._down()))
        return stream

    async def exposition(self) -> bytes:
        """The metrics of all processes. Raises `errors.EngineDown` if nobody is left to send them."""
        number = next(self._numbers)
        return bytes(await self._request(number, Scrape(number)))

    async def _request(self, number: int, message: ToEngine) -> Any:
        """The reply to a message. Raises `errors.EngineDown`."""
        if self._lost:
            raise errors.EngineDown(self._down().message)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        self.send([message])
        try:
            return await reply
        finally:
            self._replies.pop(number, None)

    def _reply(self, number: int, value: object) -> None:
        reply = self._replies.get(number)
        if reply is not None and not reply.done():
            reply.set_result(value)

    def _set_health(self, health: Health) -> None:
        self.health = health
        if health.failure is not None:
            self.ended(health.failure)

    def _down(self) -> Failure:
        return Failure(Fault.DOWN, f"the engine has failed: {self.health.failure}")


class Place:
    """A place in the engine's queue."""

    def __init__(self, number: int, engine: EngineClient) -> None:
        self.number = number
        self._engine = engine
        self._timer: asyncio.TimerHandle | None = None

    def hold(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(PLACE_S, self.free)

    def free(self) -> None:
        """See `messages.Place`."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            self._engine.send([Free(self.number)])
