"""One server of the embedded model for all tests of a process, and OpenAI's client of it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest

from ..support.servers import START_S, Server, start_server, stop_server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = start_server()
    try:
        assert httpx.get(f"{server.url}/ready", timeout=START_S).status_code == 200
        yield server
    finally:
        stop_server(server)


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client
