"""A server for all harm of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..support.servers import Server, ready_server

SLOTS, QUEUE = 8, 24


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with ready_server("--max-num-seqs", str(SLOTS), "--max-queue", str(QUEUE), "--grammar-timeout-s", "0.2") as server:
        yield server
