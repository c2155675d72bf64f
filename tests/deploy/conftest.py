"""A server of the embedded model, and Helm, once for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..support.servers import Server, ready_server
from .tools import helm_program


@pytest.fixture(scope="session")
def helm() -> str:
    return helm_program()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with ready_server() as server:
        yield server
