"""Whose turn it is to leave the queue."""

from __future__ import annotations


class Turns:
    """Start-time fair queueing of clients (Goyal, Vin and Cheng, 1996): round robin in which a turn has a cost, and the
    client with the earliest `begin` is next."""

    def __init__(self) -> None:
        self._now = 0.0  # where the last turn began
        self._next: dict[str, float] = {}  # where the next turn of a client begins, if that is later than now

    def begin(self, client: str) -> float:
        """Where the client's next turn begins. One that comes anew is level with those that are served."""
        return max(self._now, self._next.get(client, 0.0))

    def take(self, client: str, cost: float) -> None:
        self._now = self.begin(client)
        later = {name: begin for name, begin in self._next.items() if begin > self._now}
        self._next = {**later, client: self._now + cost}
