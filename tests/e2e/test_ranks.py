"""A server whose network is shared by two processes: the same answers, and one end for both."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from ..support.scale import LONG
from ..support.servers import PARIS, SLOW, STORY, TOM, Server, slow_body, start_server, stop_server, wait_for

EXIT_S = 40  # 10 are promised, but a machine may be busy
BODIES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": PARIS}], "max_tokens": 24},
    {"messages": [{"role": "user", "content": STORY}], "max_tokens": 24, "temperature": 0.8, "seed": 7, "top_p": 0.9},
    {"messages": [{"role": "user", "content": TOM}], "max_tokens": 24, "logprobs": True, "top_logprobs": 2},
    {"messages": [{"role": "user", "content": TOM}], "response_format": {"type": "json_object"}, "max_tokens": 24},
    {"messages": [{"role": "user", "content": TOM}], "logit_bias": {"20": -100}, "decoder": "wino", "max_tokens": 32},
    {"messages": [{"role": "user", "content": STORY}], "decoder": "dream", "alg": "entropy", "max_tokens": 24},
]


@contextmanager
def two_ranks(*flags: str) -> Iterator[Server]:
    server = start_server("--tensor-parallel-size", "2", "--device", "cpu", "--threads", "1", *flags)
    try:
        yield server
    finally:
        server.process.kill()
        stop_server(server)


def ranks(process: int) -> list[int]:
    """The processes of a server's other ranks."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in children if b"models.ranks" in Path(f"/proc/{child}/cmdline").read_bytes()]


def text(url: str, body: dict[str, Any]) -> str:
    response = httpx.post(f"{url}/v1/chat/completions", json={"model": "tiny-llada", **body}, timeout=60)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@LONG
def test_answers_are_those_of_one_device_alone_and_batched_and_a_rank_that_is_killed_ends_the_server(
    server: Server,
) -> None:
    want = [text(server.url, body) for body in BODIES]
    with two_ranks("--frontends", "1") as shared, ThreadPoolExecutor() as pool:
        assert [text(shared.url, body) for body in BODIES] == want
        assert list(pool.map(lambda body: text(shared.url, body), BODIES)) == want
        (rank,) = ranks(shared.process.pid)
        asked = pool.submit(httpx.post, f"{shared.url}/v1/chat/completions", json=slow_body(), timeout=60)
        wait_for(lambda: "asynclane_running_requests 1.0" in httpx.get(f"{shared.url}/metrics").text)
        os.kill(rank, signal.SIGKILL)
        error = asked.result().json()["error"]
        assert error["code"] == "engine_down"
        health = httpx.get(f"{shared.url}/health")
        assert health.status_code == 503
        assert health.json()["status"] in ("failed: rank 1 has ended (signal 9)", "failed: the device is lost")
        assert shared.process.wait(EXIT_S) == 1


@SLOW
def test_the_other_rank_ends_with_the_server() -> None:
    """As it does with the process of the first one, which tests of the ranks have."""
    with two_ranks("--frontends", "0") as shared:
        (rank,) = ranks(shared.process.pid)
        shared.process.terminate()
        assert shared.process.wait(EXIT_S) == 0
        wait_for(lambda: gone(rank))


@SLOW
def test_a_rank_that_ends_while_nothing_is_computed_is_reported() -> None:
    with two_ranks("--frontends", "0") as shared:
        (rank,) = ranks(shared.process.pid)
        os.kill(rank, signal.SIGKILL)
        wait_for(lambda: httpx.get(f"{shared.url}/health").status_code == 503)
        assert httpx.get(f"{shared.url}/health").json() == {"status": "failed: rank 1 has ended (signal 9)"}
        assert shared.process.wait(EXIT_S) == 1
