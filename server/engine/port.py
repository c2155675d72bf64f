"""A front end as the engine sees it, in this process or in another one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .messages import FromEngine, ToEngine


class Port:
    """One end of a connection: what a front end has submitted and reserved, and the messages that wait to be sent to
    it. All messages of a step go together."""

    def __init__(
        self, receive: Callable[[Port, Iterable[ToEngine]], None], send: Callable[[list[FromEngine]], None]
    ) -> None:
        self.requests: dict[int, int] = {}  # the engine's number of each request, by the front end's
        self.places: dict[int, str] = {}  # the client of each place in the queue
        self.serving: Callable[[], None] = lambda: None  # called once the front end accepts connections
        self._receive = receive
        self._send = send
        self._waiting: list[FromEngine] = []

    def take(self, messages: Iterable[ToEngine]) -> None:
        self._receive(self, messages)

    def post(self, message: FromEngine) -> None:
        """Send a message with the next `flush`."""
        self._waiting.append(message)

    def flush(self) -> None:
        if self._waiting:
            messages, self._waiting = self._waiting, []
            self._send(messages)
