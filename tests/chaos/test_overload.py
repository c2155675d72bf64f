"""More requests than a server can take: each is answered or refused at once, and nothing is left.

`make chaos` prints the figures of larger loads. The limits here are for a machine with other work.
"""

from __future__ import annotations

from ..support.servers import Server, idle, wait_for
from .conftest import QUEUE, SLOTS
from .measure import SOMETIMES_S
from .overload import REFUSED, load

LAX_S = 2.0
SLOW = ("--decoder", "llada", "--max-tokens", "8")  # slower than requests come


def test_of_120_requests_at_once_those_that_fit_are_answered_and_the_rest_refused(server: Server) -> None:
    done = load(server, "--concurrency", "120", "--requests", "120", *SLOW, every_s=SOMETIMES_S)
    assert done.failures.keys() == {REFUSED}
    assert done.answered >= SLOTS + QUEUE
    assert done.answered + done.failures[REFUSED] == 120
    assert done.refusals_p99_s is not None
    assert done.refusals_p99_s < LAX_S
    assert done.health_p99_s < LAX_S
    wait_for(lambda: idle(server.url))
