"""The choice of a replica for each request: few positions in flight, and the same one for prompts that begin alike.

Ray sends this file to its proxies, so it imports nothing of the project.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

SLACK_REQUESTS = 4  # that the replica of a session may have more than the emptiest one


class Router(RequestRouter):
    """Sends a request to the replica with the fewest positions in flight. Replicas report them each second; a request
    sent since then counts as one of average size.

    Where replicas keep keys and values of prompts, requests of one session (`x-session-id`) go to one replica, which
    all proxies compute from the name, as long as it has little more work than the others."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sent: dict[ReplicaID, tuple[int, int]] = {}  # number of the last report, and requests sent since then

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replicas in the order in which they are tried."""
        candidates = [one for one in candidate_replicas if one.routing_stats.get("ready", True)] or candidate_replicas
        if not candidates:
            return []
        stats = [one.routing_stats for one in candidates]
        requests = sum(one.get("requests", 0) for one in stats)
        mean = max(1.0, sum(one.get("positions", 0) for one in stats) / requests) if requests else 1.0
        load = {one.replica_id: self._load(one, mean) for one in candidates}
        ranked = sorted(candidates, key=lambda one: (load[one.replica_id], random.random()))
        if pending_request is None:
            return [[one] for one in ranked]
        session = pending_request.metadata.session_id
        if session and all(one.get("prefixes") for one in stats):
            home = max(candidates, key=lambda one: _weight(session, one.replica_id.unique_id))
            if load[home.replica_id] <= load[ranked[0].replica_id] + SLACK_REQUESTS * mean:
                ranked = [home, *(one for one in ranked if one is not home)]
        if not pending_request.routing_context.should_backoff:  # the first attempt
            pending_request.routing_context.should_backoff = True
            number, sent = self._sent[ranked[0].replica_id]
            self._sent[ranked[0].replica_id] = number, sent + 1
        return [[one] for one in ranked]

    def _load(self, replica: RunningReplica, mean: float) -> float:
        number = replica.routing_stats.get("number", 0)
        before, sent = self._sent.get(replica.replica_id, (number, 0))
        if number != before:
            sent = 0
        self._sent[replica.replica_id] = number, sent
        return float(replica.routing_stats.get("positions", 0) + sent * mean)


def _weight(session: str, replica: str) -> bytes:
    """Highest for one replica of a session; when replicas come or go, few sessions move."""
    return hashlib.blake2b(f"{replica} {session}".encode(), digest_size=8).digest()
