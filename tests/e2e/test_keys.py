"""A server with named keys: nobody waits for a greedy client, and the file is read again on SIGHUP."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ..support.servers import PARIS, WAIT_S, Server, gauge, slow_body, start_server, stop_server, wait_for


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("secrets") / "keys"
    path.write_text("greedy:k1\nother:k2\n")
    return path


@pytest.fixture(scope="module")
def server(file: Path) -> Iterator[Server]:
    server = start_server("--api-key-file", str(file), "--kv-cache-tokens", "2048")
    yield server
    stop_server(server)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_a_request_for_sixteen_long_answers_holds_up_nobody(server: Server) -> None:
    url = f"{server.url}/v1/chat/completions"
    slow = slow_body(max_tokens=600, ignore_eos=True, n=16, stream=True, temperature=1)
    with httpx.stream("POST", url, json=slow, headers=bearer("k1"), timeout=WAIT_S) as greedy:
        assert greedy.status_code == 200
        wait_for(lambda: gauge(server.url, "queue_depth") >= 14)
        body = {"model": "tiny-llada", "messages": [{"role": "user", "content": PARIS}], "max_tokens": 16}
        answered = httpx.post(url, json=body, headers=bearer("k2"), timeout=WAIT_S)
        assert "Paris" in answered.json()["choices"][0]["message"]["content"]
        assert gauge(server.url, "queue_depth") >= 14, "the other did not wait for these"
    wait_for(lambda: gauge(server.url, "running_requests") == gauge(server.url, "queue_depth") == 0)


def test_the_file_is_read_again_on_sighup(server: Server, file: Path) -> None:
    def status(key: str) -> int:
        return httpx.get(f"{server.url}/v1/models", headers=bearer(key)).status_code

    assert [status(key) for key in ("k1", "k2", "k3")] == [200, 200, 401]
    file.write_text("other:k2\nthird:k3\n")
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: status("k3") == 200)
    assert [status(key) for key in ("k1", "k2")] == [401, 200]
