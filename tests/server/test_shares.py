"""Beyond the limit each client still has an equal share."""

from __future__ import annotations

import pytest

from asynclane.server.shares import Shares


@pytest.mark.parametrize(
    ("taken", "client", "size", "admitted"),
    [
        ({}, "a", 6, True),
        ({}, "a", 7, False),
        ({"a": 5}, "a", 1, True),
        ({"a": 6}, "a", 1, False),
        ({"a": 6}, "b", 3, True),  # half for each
        ({"a": 6}, "b", 4, False),
        ({"a": 6, "b": 3}, "b", 1, False),
        ({"a": 6, "b": 3}, "c", 2, True),
        ({"a": 6, "b": 3}, "c", 3, False),
        ({"a": 2, "b": 1}, "c", 3, True),  # below the limit there are no shares
    ],
)
def test_a_client_is_refused_beyond_the_limit_and_beyond_its_share(
    taken: dict[str, int], client: str, size: int, admitted: bool
) -> None:
    shares = Shares(6)
    for other, number in taken.items():
        shares.take(other, number)
    assert shares.admits(client, size) is admitted


def test_what_is_given_back_is_free_and_its_client_is_not_counted_any_more() -> None:
    shares = Shares(6)
    shares.take("a", 6)
    shares.take("b", 3)
    assert not shares.admits("c", 3)
    shares.give("b", 3)
    assert shares.admits("c", 3)
    shares.give("a", 6)
    assert shares.admits("c", 6)
