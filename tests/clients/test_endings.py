"""A stream that did not end never reads as ended: not after an error, a time limit, a cancelled read or a close."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from asynclane.clients import AsyncClient, Client, ClientError, Closed, StatusError, StreamError, TimedOut

from .conftest import ANSWER, HI, chunk, replies

FAULTS: dict[str, tuple[Any, type[ClientError]]] = {
    "reported by the server": ('data: {"error": {"message": "boom"}}\n\n', StreamError),
    "broken off": (httpx.ReadError("reset"), StreamError),
    "silent": (httpx.ReadTimeout(""), TimedOut),
    "cut": ("data: {", StreamError),
    "no chunk": ("data: {}\n\n", StreamError),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_ended_a_stream_is_raised_by_every_later_read(connect_either: Any, fault: str) -> None:
    part, kind = FAULTS[fault]
    with connect_either(replies(chunk("a"), part)) as (client, _):
        stream = client.stream_chat(HI, model="m")
        assert next(stream).text == "a"
        reported = []
        for _ in range(3):
            with pytest.raises(kind) as caught:
                next(stream)
            reported.append(str(caught.value))
        stream.close()
        with pytest.raises(kind) as caught:
            list(stream)
    assert len({*reported, str(caught.value)}) == 1


def test_a_refused_stream_is_not_asked_for_again(connect_either: Any) -> None:
    with connect_either(lambda: httpx.Response(400)) as (client, server):
        stream = client.stream_chat(HI, model="m")
        with pytest.raises(StatusError), stream:
            pass
        with pytest.raises(StatusError):
            next(stream)
        assert len(server.requests) == 1


@pytest.mark.parametrize("read", [0, 1])
def test_a_stream_closed_before_its_end_can_be_read_no_more(connect_either: Any, read: int) -> None:
    with connect_either(replies(ANSWER)) as (client, _):
        stream = client.stream_chat(HI, model="m")
        for _ in range(read):
            next(stream)
        stream.close()
        stream.close()
        with pytest.raises(Closed, match="closed before its end"):
            list(stream)
        with pytest.raises(Closed), stream:
            pass


def test_a_stream_closed_behind_its_end_has_ended(connect_either: Any) -> None:
    with connect_either(replies(ANSWER)) as (client, _):
        with client.stream_chat(HI, model="m") as stream:
            assert len(list(stream)) == 3
        assert list(stream) == []


def test_a_closed_client_says_so(connect_either: Any) -> None:
    with connect_either(replies(ANSWER)) as (client, server):
        client.close()
        for use in (client.models, lambda: client.chat(HI, model="m"), lambda: list(client.stream_chat(HI, model="m"))):
            with pytest.raises(Closed, match="this client is closed"):
                use()
        assert server.requests == []


async def test_a_read_that_was_cancelled_does_not_end_the_stream() -> None:
    class Slow(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            yield chunk("a").encode()
            await asyncio.sleep(60)

    transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=Slow()))
    async with AsyncClient("http://test", transport=transport) as client:
        stream = client.stream_chat(HI, model="m")
        assert (await anext(stream)).text == "a"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.05)
        for _ in range(2):
            with pytest.raises(StreamError, match="an earlier read of this stream failed"):
                await anext(stream)


# --- Over a real connection: what waits in the kernel is woken


@contextmanager
def silent_server() -> Iterator[tuple[str, threading.Event]]:
    """Sends the first chunk of a stream, then nothing; the event is set when the client has left."""
    left = threading.Event()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
            connection.sendall(head + chunk("a").encode())
            connection.settimeout(10)
            while connection.recv(65536):
                pass
            left.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", left
        thread.join(15)


def test_another_thread_can_close_a_stream_that_is_waited_for() -> None:
    with silent_server() as (url, left), Client(url) as client:
        stream = client.stream_chat(HI, model="m")
        assert next(stream).text == "a"
        caught: list[BaseException] = []

        def read() -> None:
            try:
                next(stream)
            except (ClientError, StopIteration) as error:
                caught.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        reader.join(0.2)
        assert reader.is_alive()
        stream.close()
        reader.join(5)
        assert [type(error) for error in caught] == [Closed]
        assert left.wait(5)


async def test_another_task_can_close_a_stream_that_is_waited_for() -> None:
    with silent_server() as (url, left):
        async with AsyncClient(url) as client:
            stream = client.stream_chat(HI, model="m")
            assert (await anext(stream)).text == "a"
            reader = asyncio.ensure_future(anext(stream))
            done, _ = await asyncio.wait([reader], timeout=0.2)
            assert not done
            await stream.close()
            with pytest.raises(Closed):
                await asyncio.wait_for(reader, 5)
        assert await asyncio.to_thread(left.wait, 5)
