"""A worker serves clients in turn, refuses one that has too many jobs, and keeps nothing of a job that is cancelled."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait

from asynclane.server.structured.fair_worker import FairWorker


def test_clients_take_turns_and_jobs_that_are_cancelled_leave_nothing() -> None:
    worker, go_on = FairWorker[str]("test", 4), threading.Event()
    done: list[str] = []

    def submit(client: str, name: str) -> Future[str] | None:
        def job() -> str:
            done.append(name)
            return name

        return worker.submit(client, job)

    first = worker.submit("a", lambda: str(go_on.wait(30)))
    jobs = {name: submit(name[0], name) for name in ("a1", "a2", "a3", "a4", "b1", "b2", "b3", "c1", "c2")}
    assert [name for name, job in jobs.items() if job is None] == ["a4", "b3", "c2"]
    for name in ("a2", "c1"):
        job = jobs.pop(name)
        assert job is not None
        assert job.cancel()
        assert all(job not in waiting for waiting in worker._waiting.values())
    assert "c" not in worker._waiting
    again = submit("c", "c3")
    assert again is not None, "who leaves gives the place up"
    go_on.set()
    assert not wait([job for job in (first, again, *jobs.values()) if job is not None], 30).not_done
    assert sorted(done[:3]) == ["a1", "b1", "c3"]
    assert sorted(done[3:]) == ["a3", "b2"]
