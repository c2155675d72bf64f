"""Work ends when its client leaves, and sources are merged without losing or holding anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from starlette.types import Message

from asynclane.server.http.sse import (
    ClientGone,
    EventStream,
    event,
    merge,
    until_gone,
)


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def gone() -> Message:
    return {"type": "http.disconnect"}


def test_an_event_is_one_line_of_data_whatever_it_holds() -> None:
    assert event({"a": "b\n\nc ä"}) == 'data: {"a":"b\\n\\nc ä"}\n\n'.encode()
    assert len(event({"a": "b\x85c\u2028d\u2029"}).decode().splitlines()) == 2, "as many clients split them"
    assert event({}, "error") == b"event: error\ndata: {}\n\n"


async def test_work_that_ends_first_gives_its_result() -> None:
    async def work() -> int:
        return 5

    assert await until_gone(never, work()) == 5


async def test_work_that_fails_raises_its_error() -> None:
    async def work() -> int:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await until_gone(never, work())


async def test_when_the_client_leaves_the_work_has_ended_before_we_go_on() -> None:
    ended = False

    async def work() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended = True

    with pytest.raises(ClientGone):
        await until_gone(gone, work())
    assert ended


async def test_merged_sources_lose_nothing_and_end_together() -> None:
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            await asyncio.sleep(0)
            yield number

    got = [item async for item in merge([count(3), count(0), count(5)])]
    assert [number for index, number in got if index == 0] == [0, 1, 2]
    assert [number for index, number in got if index == 2] == [0, 1, 2, 3, 4]
    assert len(got) == 8


async def test_a_response_that_is_cut_off_while_sending_frees_what_it_owns() -> None:
    freed: list[str] = []
    left = asyncio.Event()

    async def events() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x"
        finally:
            freed.append("events")

    async def slow_client(message: Message) -> None:
        if message["type"] == "http.response.body":
            left.set()
            await asyncio.Event().wait()

    async def leaves() -> Message:
        await left.wait()
        return {"type": "http.disconnect"}

    owner = AsyncExitStack()
    owner.callback(freed.append, "owner")
    await EventStream(events(), owner)({"type": "http"}, leaves, slow_client)  # type: ignore[arg-type]
    assert freed == ["events", "owner"]


async def test_an_error_before_the_first_event_leaves_the_response_to_others() -> None:
    sent: list[Message] = []

    async def events() -> AsyncIterator[bytes]:
        raise KeyError("x")
        yield b""

    async def send(message: Message) -> None:
        sent.append(message)

    with pytest.raises(KeyError):
        await EventStream(events(), AsyncExitStack())({"type": "http"}, never, send)  # type: ignore[arg-type]
    assert not sent


async def test_a_response_that_never_starts_frees_what_it_owns() -> None:
    freed: list[str] = []

    async def events() -> AsyncIterator[bytes]:
        yield b"x"

    async def broken(message: Message) -> None:
        raise OSError

    owner = AsyncExitStack()
    owner.callback(freed.append, "owner")
    with pytest.raises(OSError):  # noqa: PT011 - any will do
        await EventStream(events(), owner)({"type": "http"}, never, broken)  # type: ignore[arg-type]
    assert freed == ["owner"]
