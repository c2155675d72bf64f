"""One server of each embedded model for all tests of a process, and OpenAI's client of one."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from ..support.servers import Server, ready_server
from .browser import browser, visit

__all__ = ["browser", "visit"]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with ready_server() as server:
        yield server


@pytest.fixture(scope="session")
def chat_server() -> Iterator[Server]:
    """A server of the model that knows tools."""
    with ready_server("--model", "tiny-chat") as server:
        yield server


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client
