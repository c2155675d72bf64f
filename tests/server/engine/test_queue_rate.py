"""`Retry-After` follows the rate at which requests end, and is not the same for all."""

from __future__ import annotations

import pytest

from asynclane.server.engine.queue_rate import LONGEST_S, QueueRate


@pytest.mark.parametrize(
    ("ended_s", "now_s", "waiting", "least_s", "most_s"),
    [
        ([1.0, 2.0, 3.0, 4.0], 4.0, 20, 10, 20),  # one a second
        ([0.5] * 50, 1.0, 300, 3, 6),  # fifty a second
        ([10.0], 10.0, 100, LONGEST_S // 2, LONGEST_S),
        ([], 2.0, 10, 10, 20),  # none yet
        ([1.0], 1.0, 0, 1, 1),
        ([float(second) for second in range(1, 101)], 100.0, 10, 5, 10),
    ],
)
def test_clients_come_back_while_the_queue_empties(
    ended_s: list[float], now_s: float, waiting: int, least_s: int, most_s: int
) -> None:
    rate = QueueRate()
    rate.begin(0.0)
    for at_s in ended_s:
        rate.end(at_s)
    drawn = {rate.retry_after_s(waiting, now_s) for _ in range(200)}
    assert least_s <= min(drawn)
    assert max(drawn) <= most_s
    assert len(drawn) > 1 or least_s == most_s, "not all at once"


def test_time_without_work_does_not_count() -> None:
    rate = QueueRate()
    assert rate.retry_after_s(5, 99.0) == 1, "nothing has begun"
    rate.begin(0.0)
    rate.end(1.0)
    rate.begin(1000.0)
    rate.end(1000.5)
    assert rate.retry_after_s(4, 1000.5) <= 2
