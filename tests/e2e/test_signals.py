"""How a server ends on signals: those who wait for an answer are informed."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from ..support.scale import LONG
from ..support.servers import gauge, slow_body, start_server, stop_server, wait_for


@pytest.mark.parametrize(("name", "code", "drain_s"), [("TERM", 0, 1), pytest.param("INT", 130, 600, marks=LONG)])
def test_requests_that_a_draining_server_cannot_finish_are_informed(name: str, code: int, drain_s: int) -> None:
    """503 in OpenAI's shape, and an error event in a stream, when the time for draining or a second signal ends it."""
    number = signal.Signals[f"SIG{name}"]
    server = start_server("--drain-s", str(drain_s))
    url, body = f"{server.url}/v1/chat/completions", slow_body(ignore_eos=True)
    watched = {**body, "stream": True, "stream_options": {"include_lanes": True}}  # begins with the first step
    try:
        with ThreadPoolExecutor() as pool:
            whole = pool.submit(httpx.post, url, json=body, timeout=60)
            streamed = pool.submit(httpx.post, url, json=watched, timeout=60)
            wait_for(lambda: gauge(server.url, "running_requests") == 2)
            steps = gauge(server.url, "forwards_total")
            wait_for(lambda: gauge(server.url, "forwards_total") >= steps + 2)  # the stream has begun
            server.process.send_signal(number)
            wait_for(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
            late = httpx.post(url, json=body, timeout=60)
            drains = f"finishing running requests, at most {drain_s} s; Ctrl-C again ends at once"
            wait_for(lambda: drains in "".join(server.log))
            if drain_s > 1:
                assert not streamed.done()
                server.process.send_signal(number)
            assert server.process.wait(timeout=20) == code
    finally:
        stop_server(server)
    assert [late.status_code, whole.result().status_code] == [503, 503]
    assert late.json()["error"]["code"] == whole.result().json()["error"]["code"] == "draining"
    assert "event: error" in streamed.result().text
    assert "draining" in streamed.result().text
