"""Frames between two processes, however the system cuts them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asynclane.scheduler import RequestStats
from asynclane.server.engine.messages import Abort, AnswerOptions, Free, FromEngine, Health, Progress, Submit, ToEngine
from asynclane.server.link import LENGTH, Link, receive_frame, send_frame


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


@asynccontextmanager
async def pair(taken: list[Any], lost: list[bool]) -> AsyncIterator[tuple[Link[Any, Any], Link[Any, Any]]]:
    ours, theirs = socket.socketpair()
    one: Link[Any, Any] = Link(FromEngine, lambda messages: None, lambda: lost.append(True))
    other: Link[Any, Any] = Link(ToEngine, taken.append, lambda: lost.append(False))
    await one.open(ours)
    await other.open(theirs)
    try:
        yield one, other
    finally:
        one.close()
        await until(lambda: len(lost) == 2)


async def test_messages_arrive_in_frames_as_they_were_sent() -> None:
    taken: list[Any] = []
    large = Submit(1, tuple(range(300_000)), AnswerOptions(8))
    async with pair(taken, []) as (one, _):
        for messages in ([Abort(1), Free(2)], [large], [Abort(3)]):
            one.send(messages)
        await until(lambda: len(taken) == 3)
    assert taken == [[Abort(1), Free(2)], [large], [Abort(3)]]


async def test_messages_of_one_turn_go_in_one_frame() -> None:
    """So the engine has all answers of a request before it plans a step."""
    taken: list[Any] = []
    async with pair(taken, []) as (one, _):
        for number in range(3):
            one.send_soon([Abort(number)])
        await until(lambda: taken)
    assert taken == [[Abort(0), Abort(1), Abort(2)]]


async def test_a_message_that_cannot_be_encoded_is_its_senders_error_alone() -> None:
    taken: list[Any] = []
    async with pair(taken, []) as (one, _):
        one.send_soon([Abort(1)])
        with pytest.raises(OverflowError):
            one.send_soon([Submit(2, (1,), AnswerOptions(8, params=(("steps", 2**70),)))])
        one.send_soon([Abort(3)])
        await until(lambda: taken)
    assert taken == [[Abort(1), Abort(3)]]


@pytest.mark.parametrize("size", [1, 3, 4, 7, 1000])
def test_frames_may_be_cut_anywhere(size: int) -> None:
    sent: list[bytes] = []
    taken: list[Any] = []
    sender: Link[Any, Any] = Link(ToEngine, lambda messages: None, lambda: None)

    class Wire(asyncio.Transport):
        def write(self, data: Any) -> None:
            sent.append(bytes(data))

        def is_closing(self) -> bool:
            return False

    sender.connection_made(Wire())
    frames = [[Health(True), Progress(1, b"\0" * 40, RequestStats(1, 2))], [], [Health(False, "lost")]]
    for frame in frames:
        sender.send(frame)
    receiver: Link[Any, Any] = Link(FromEngine, taken.append, lambda: None)
    data = b"".join(sent)
    for start in range(0, len(data), size):
        receiver.data_received(data[start : start + size])
    assert taken == frames


async def test_the_end_of_one_side_is_seen_by_the_other_and_sending_does_no_harm() -> None:
    lost: list[bool] = []
    async with pair([], lost) as (one, other):
        other.close()
        await until(lambda: len(lost) == 2)
        one.send([Health(True)])
        other.send([Abort(1)])


def test_the_first_frame_comes_without_an_event_loop() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_frame(ours, {"a": [1, 2]})
        ours.sendall(LENGTH.pack(3) + b"x")
        assert receive_frame(theirs) == b"\x81\xa1a\x92\x01\x02"
        ours.close()
        with pytest.raises(EOFError):
            receive_frame(theirs)
