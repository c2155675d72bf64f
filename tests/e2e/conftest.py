"""Servers for all tests of a process, and OpenAI's clients of them."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from ..support.servers import START_S, Server, ready_server
from .browser import browser, visit

__all__ = ["browser", "visit"]

KEY = "secret"


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with ready_server() as server:
        yield server


@pytest.fixture(scope="session")
def open_server() -> Iterator[Server]:
    """One of the embedded model that knows tools, without keys."""
    with ready_server("--model", "tiny-chat") as server:
        yield server


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def chat_server() -> Iterator[Server]:
    """One of the embedded model that knows tools, with a front end, that requires `KEY`."""
    with ready_server("--model", "tiny-chat", "--api-key", KEY, "--frontends", "1") as server:
        yield server


@pytest.fixture(scope="session")
def chat_client(chat_server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{chat_server.url}/v1", api_key=KEY, max_retries=0, timeout=START_S) as client:
        yield client
