"""A device that fails in a real process: clients and probes get the reason, and the process ends with exit code 1."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from ..support.processes import started
from ..support.scale import LONG
from ..support.servers import SLOW, Server, gauge, slow_body, start_server, stop_server, wait_for

PROGRAM = str(Path(__file__).parents[1] / "support" / "failing_server.py")
EXIT_S = 40  # 10 are promised, but a machine may be busy


@contextmanager
def failing(fault: str, *flags: str) -> Iterator[Server]:
    server = start_server(*flags, program=[sys.executable, "-P", PROGRAM, fault])
    try:
        yield server
    finally:
        server.process.kill()
        stop_server(server)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param("lost", "the device is lost", marks=SLOW),
        ("hangs", "a step took longer than 1 s"),
        pytest.param("loop", "the engine's loop ended unasked", marks=SLOW),
    ],
    ids=["lost", "hangs", "loop"],
)
def test_clients_and_probes_get_the_reason_before_the_process_ends(fault: str, reason: str) -> None:
    with failing(fault, "--step-timeout-s", "1") as server, ThreadPoolExecutor() as pool:
        probes = [pool.submit(last_response, server.url + path) for path in ("/health", "/ready", "/metrics")]
        url = f"{server.url}/v1/chat/completions"
        asked = [pool.submit(httpx.post, url, json=slow_body(stream=stream), timeout=60) for stream in (False, True)]
        for answer in asked:
            assert answer.result().status_code == 503
            error = answer.result().json()["error"]
            assert (error["code"], error["message"]) == ("engine_down", f"the engine has failed: {reason}")
        assert server.process.wait(EXIT_S) == 1
        *states, metrics = [probe.result() for probe in probes]
        assert [(state.status_code, state.json()) for state in states] == [(503, {"status": f"failed: {reason}"})] * 2
        assert "asynclane_engine_up 0.0" in metrics.text


def last_response(url: str) -> httpx.Response:
    """The last one before the server is gone."""
    with httpx.Client(timeout=60) as client:
        response = client.get(url)
        with suppress(httpx.TransportError):
            while True:
                time.sleep(0.05)
                response = client.get(url)
    return response


@LONG
def test_a_step_that_raises_is_survived_and_three_in_a_row_are_not() -> None:
    with failing("raises") as server, httpx.Client(base_url=server.url, timeout=60) as client:
        responses = [client.post("/v1/chat/completions", json=slow_body(max_tokens=8)) for _ in range(5)]
        assert [response.status_code for response in responses] == [500, 200, 500, 500, 503]
        health = client.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "failed: 3 steps failed in a row"})
        assert client.post("/v1/chat/completions", json=slow_body()).json()["error"]["code"] == "engine_down"
        assert server.process.wait(EXIT_S) == 1
        assert "the engine has failed: 3 steps failed in a row" in "".join(server.log)


@LONG
@pytest.mark.parametrize("read", [True, pytest.param(False, marks=SLOW)], ids=["log is read", "log is full"])
def test_an_event_loop_that_is_stuck_does_not_keep_the_process(read: bool) -> None:
    serve = "serve", "--model", "tiny-llada", "--port", "0", "--step-timeout-s", "1"
    command = [sys.executable, "-P", PROGRAM, "blocks", *serve]
    with started(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process, ThreadPoolExecutor() as pool:
        assert process.stderr is not None
        url = next(found[1] for line in process.stderr if (found := re.search(r"running on (\S+)", line)))
        if not read:
            log = os.open(f"/proc/{process.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
            with suppress(BlockingIOError), open(log, "wb", buffering=0) as pipe:
                while pipe.write(b"x" * 4096):
                    pass
        asked = pool.submit(httpx.post, f"{url}/v1/chat/completions", json=slow_body(), timeout=60)
        assert process.wait(EXIT_S) == 1
        assert isinstance(asked.exception(), httpx.TransportError)
        assert ("in hang" in process.stderr.read()) is read  # the stacks


@LONG
def test_a_signal_ends_a_server_whose_step_hangs() -> None:
    with failing("hangs", "--drain-s", "1", "--step-timeout-s", "600") as server, ThreadPoolExecutor() as pool:
        asked = pool.submit(httpx.post, f"{server.url}/v1/chat/completions", json=slow_body(stream=True), timeout=60)
        wait_for(lambda: gauge(server.url, "queue_depth") == 1)
        server.process.terminate()
        assert asked.result().json()["error"]["code"] == "draining"
        assert server.process.wait(EXIT_S) == 1
