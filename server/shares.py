"""Equal shares of a bounded resource, so that one client that fills it keeps nobody out."""

from __future__ import annotations

from collections import Counter


class Shares:
    """Counts what each client has of a resource. Beyond `limit` in total, each client may still have an equal share of
    it: the rule of the scheduler's queue."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: Counter[str] = Counter()

    def admits(self, client: str, size: int = 1) -> bool:
        """Return whether a client may take so much more."""
        if self._taken.total() + size <= self._limit:
            return True
        clients = len(self._taken.keys() | {client})
        return self._taken[client] + size <= self._limit // clients

    def take(self, client: str, size: int = 1) -> None:
        self._taken[client] += size

    def give(self, client: str, size: int = 1) -> None:
        """Return what was taken."""
        self._taken[client] -= size
        if not self._taken[client]:
            del self._taken[client]
