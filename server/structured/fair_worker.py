"""A thread that works for one client after the other."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeVar

from ..shares import Shares

T = TypeVar("T")


class FairWorker(Generic[T]):
    """Runs jobs one at a time, and takes the next one from each client in turn: one that has many delays nobody by more
    than one. `limit` jobs may be unfinished, and of each client an equal share (`Shares`)."""

    def __init__(self, name: str, limit: int) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._shares = Shares(limit)
        self._waiting: OrderedDict[str, dict[Future[T], Callable[[], T]]] = OrderedDict()
        self._lock = threading.Lock()

    def submit(self, client: str, job: Callable[[], T]) -> Future[T] | None:
        """Queue a job. Returns None if its client has too many."""
        future = Future[T]()
        with self._lock:
            if not self._shares.admits(client):
                return None
            self._shares.take(client)
            self._waiting.setdefault(client, {})[future] = job
        future.add_done_callback(partial(self._forget, client))
        self._thread.submit(self._run_next)
        return future

    def _run_next(self) -> None:
        with self._lock:
            if not self._waiting:  # the job that this was for has been cancelled
                return
            client, jobs = self._waiting.popitem(last=False)
            future = next(iter(jobs))
            job = jobs.pop(future)
            if jobs:
                self._waiting[client] = jobs
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - whoever waits decides
                future.set_exception(error)

    def _forget(self, client: str, future: Future[T]) -> None:
        with self._lock:
            self._shares.give(client)
            jobs = self._waiting.get(client, {})
            if jobs.pop(future, None) is not None and not jobs:
                del self._waiting[client]
