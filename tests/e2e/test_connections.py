"""Real processes whose descriptors run out, and whose log nobody reads."""

from __future__ import annotations

import re
import resource
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from ..support.processes import ASYNCLANE, started
from ..support.scale import LONG
from ..support.servers import START_S, Server, front_ends, start_server, stop_server, wait_for


@contextmanager
def idle(url: str, count: int) -> Iterator[list[socket.socket]]:
    """So many connections that send nothing."""
    port = int(url.rpartition(":")[2])
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)) for _ in range(count)]


def healthy(url: str, timeout_s: float = 5) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=timeout_s).status_code == 200
    except httpx.TransportError:
        return False


def log_bytes(server: Server) -> int:
    return sum(map(len, server.log))


@LONG
def test_idle_connections_do_not_stop_a_server_with_few_descriptors() -> None:
    server = start_server("--header-timeout-s", "3", descriptors=64)
    try:
        before = log_bytes(server)
        with idle(server.url, 150) as clients:
            wait_for(lambda: healthy(server.url))
            endings = {client.recv(12) for client in clients}
        assert endings == {b"", b"HTTP/1.1 503"}, "idle for too long, or one too many"
        assert log_bytes(server) - before < 5_000, "".join(server.log)[-5_000:]
    finally:
        stop_server(server)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux")
def test_a_server_without_descriptors_logs_a_line_a_second_and_recovers(server: Server) -> None:
    before, processes = len(server.log), front_ends(server.process.pid) or [server.process.pid]
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in processes}
    try:
        for pid, (_, hard) in limits.items():
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(list(Path(f"/proc/{pid}/fd").iterdir())) + 5, hard))
        with idle(server.url, 20):
            wait_for(lambda: "no connection can be accepted" in "".join(server.log[before:]))
            assert not healthy(server.url, timeout_s=2)
        wait_for(lambda: healthy(server.url))
    finally:
        for pid, usual in limits.items():
            resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)
    log = "".join(server.log[before:])
    assert "Traceback" not in log
    assert "left out" not in log
    assert len(log) < 5_000, log[-5_000:]


@LONG
def test_a_log_that_nobody_reads_stops_neither_answers_nor_the_end() -> None:
    """500 lines are 150 kB, and a pipe takes 64."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started([*ASYNCLANE, "serve", "--port", "0"], **pipes) as process:
        assert process.stderr is not None
        url = next(found[1] for line in process.stderr if (found := re.search(r"running on (\S+)", line)))
        with httpx.Client(base_url=url, headers={"x-request-id": "x" * 128}, timeout=START_S) as client:
            for _ in range(500):
                assert client.get("/version").status_code == 200
        process.terminate()
        assert process.wait(timeout=40) == 0
