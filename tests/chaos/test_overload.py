"""More requests than a server can take: each is answered or refused at once, and nothing is left.

`make chaos` prints the figures of larger loads. The limits here are for a machine with other work.
"""

from __future__ import annotations

from ..support.servers import idle, start_server, stop_server, wait_for
from .overload import REFUSED, load

LAX_S = 2.0
SLOW = ("--decoder", "llada", "--max-tokens", "8")  # slower than requests come


def test_of_120_requests_at_once_those_that_fit_are_answered_and_the_rest_refused() -> None:
    server = start_server("--max-num-seqs", "8", "--max-queue", "24")
    try:
        done = load(server, "--concurrency", "120", "--requests", "120", *SLOW)
        assert done.failures.keys() == {REFUSED}
        assert done.answered >= 8 + 24
        assert done.answered + done.failures[REFUSED] == 120
        assert done.refusals_p99_s is not None
        assert done.refusals_p99_s < LAX_S
        assert done.health_p99_s < LAX_S
        wait_for(lambda: idle(server.url))
    finally:
        stop_server(server)
