"""How a server ends on signals."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from ..support.servers import gauge, slow_body, start_server, stop_server, wait_for


@pytest.mark.parametrize("name", ["TERM", "INT"])
def test_a_second_signal_ends_the_draining_and_running_requests_are_informed(name: str) -> None:
    number = signal.Signals[f"SIG{name}"]
    server = start_server("--drain-s", "600")
    slow = slow_body(max_tokens=900, ignore_eos=True, n=8, stream=True)
    try:
        with ThreadPoolExecutor() as pool:
            streamed = pool.submit(httpx.post, f"{server.url}/v1/chat/completions", json=slow, timeout=60)
            wait_for(lambda: gauge(server.url, "running_requests") == 8)
            server.process.send_signal(number)
            wait_for(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
            assert not streamed.done()
            server.process.send_signal(number)
            assert server.process.wait(timeout=20) == {"TERM": 0, "INT": 130}[name]
    finally:
        server.process.kill()  # whatever is left
        stop_server(server)
    assert "draining" in streamed.result().text
