"""Whose turn it is to leave the queue."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from .sequence import Sequence


class Turns:
    """Start-time fair queueing of clients (Goyal, Vin and Cheng, 1996): round robin in which a turn costs the pages
    that the request gets, over its client's weight. The requests of one client keep their order."""

    def __init__(self) -> None:
        self._now = 0.0  # where the last turn began
        self._next: dict[str, float] = {}  # where the next turn of a client begins, if that is later than now

    def order(self, waiting: Iterable[Sequence], running: Collection[Sequence]) -> list[Sequence]:
        """The first request of each client, by turn and then by arrival. Further requests of a bundle that runs go
        last, so that a request for many answers holds up nobody."""
        first: dict[str, Sequence] = {}
        for sequence in waiting:
            first.setdefault(sequence.request.client, sequence)
        bundles = {sequence.request.bundle for sequence in running} - {None}

        def turn(sequence: Sequence) -> tuple[bool, float]:
            request = sequence.request
            return request.bundle in bundles, max(self._now, self._next.get(request.client, 0.0))

        return sorted(first.values(), key=turn)

    def take(self, client: str, cost: float) -> None:
        """The client has had its turn."""
        self._now = max(self._now, self._next.get(client, 0.0))
        later = {name: start for name, start in self._next.items() if start > self._now}
        self._next = {**later, client: self._now + cost}
