"""A server of the embedded model, and Helm, once for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from ..support.servers import START_S, Server, start_server, stop_server
from .tools import helm_program


@pytest.fixture(scope="session")
def helm() -> str:
    return helm_program()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = start_server()
    try:
        assert httpx.get(f"{server.url}/ready", timeout=START_S).status_code == 200
        yield server
    finally:
        stop_server(server)
