"""Bodies and schemas at full size against a real server: each is refused, and nobody beside it notices.

`make chaos` prints how long `/health` waits meanwhile. The limit here is for a machine with other work. `make soak`
does for ten minutes what the last test does for seconds.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import httpx
import pytest

from ..support.servers import PARIS, SLOW, Server, idle, wait_for
from .bombs import FULL_BYTES, TOGETHER, all_bombs, drop
from .measure import SOMETIMES_S, health_waits, memory_mb
from .soak import soak

LONGEST_WAIT_S, MOST_MB = 2.0, 300


def ask(server: Server) -> str:
    body = {"model": "tiny-llada", "messages": [{"role": "user", "content": PARIS}]}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    return str(response.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize("together", [pytest.param(1, marks=SLOW), TOGETHER], ids=["one by one", "together"])
def test_each_is_refused_and_nobody_beside_it_notices(server: Server, together: int) -> None:
    alone, before_mb, over = ask(server), memory_mb(server.process.pid), Event()

    def ask_on() -> set[str]:
        answers = set()
        while not over.wait(0.5):
            answers.add(ask(server))
        return answers

    with ThreadPoolExecutor() as pool, health_waits(server.url, SOMETIMES_S) as waits:
        beside = pool.submit(ask_on)
        blasts = list(drop(server, all_bombs(FULL_BYTES, str(together)), together))
        over.set()
    assert [blast for blast in blasts if not blast.expected] == []
    assert beside.result() == {alone}
    assert max(blast.peak_mb for blast in blasts) - before_mb < MOST_MB
    assert max(waits.values()) < LONGEST_WAIT_S
    wait_for(lambda: idle(server.url))
    assert server.process.poll() is None
    assert "Traceback" not in "".join(server.log)


def test_good_and_bad_requests_side_by_side_get_what_they_should(server: Server) -> None:
    figures, _ = asyncio.run(soak(server, seconds=2))
    assert not figures["wrong"]
    assert sum(figures["done"].values()) > 8
