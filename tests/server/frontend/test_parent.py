"""Each front end's part of a server's limits."""

from __future__ import annotations

import pytest

from asynclane.server.frontend.parent import unread_part
from asynclane.server.settings import Settings


@pytest.mark.parametrize(
    ("total", "longest", "count", "part"),
    [
        (64, 20, 1, 64),
        (64, 20, 3, 22),
        (64, 20, 8, 20),  # a body that may be sent can be read
        (64, 100, 8, 64),
    ],
)
def test_each_has_room_for_the_longest_body(total: int, longest: int, count: int, part: int) -> None:
    settings = Settings(max_unread_bytes=total, max_body_bytes=longest)
    assert unread_part(settings, count, max_model_len=512) == part


def test_the_longest_body_is_that_of_the_context_if_no_flag_says_more() -> None:
    assert unread_part(Settings(), 16, max_model_len=2**20) == 2**20 + 32 * 2**20
