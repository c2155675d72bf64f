"""Over real sockets: a client that is slow, idle or one too many is cut off, and no other."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from asynclane.server.engine.messages import Delta
from asynclane.server.http.connections import Connection, ConnectionConfig, connection_limit, log_accept_errors
from asynclane.server.settings import Settings

from ...support.fake_engine import SCRIPT, FakeEngine
from ...support.http import CHAT, serving

SOON_S = 20
GET = b"GET /path HTTP/1.1\r\nhost: x\r\n\r\n"


async def respond(request: Request) -> Response:
    if request.url.path == "/slow":
        await asyncio.sleep(0.6)
    return Response(b"x" * 20_000_000 if request.url.path == "/large" else request.scope["path"])


@asynccontextmanager
async def connected(**settings: Any) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    app = Starlette(routes=[Route("/{path:path}", respond)])
    async with serving(app, Settings(**settings)) as port, asyncio.timeout(SOON_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        yield reader, writer
        writer.close()


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The status line and the body of a response with a length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split()[0])
    return head.partition(b"\r\n")[0], await reader.readexactly(length)


# --- Headers and idle connections

UNFINISHED = {
    "nothing": [],
    "half a request line": [b"GET /pa"],
    "no end of headers": [b"GET / HTTP/1.1\r\nhost: x\r\n"],
    "a byte at a time": [bytes([byte]) for byte in b"GET / HTTP/1.1\r\nx: " + b"y" * 1000],
    "a second request": [GET, b"GET / HTTP/1.1\r\n"],
}


@pytest.mark.parametrize("parts", UNFINISHED.values(), ids=list(UNFINISHED))
async def test_headers_that_do_not_come_close_the_connection(parts: list[bytes]) -> None:
    async with connected(header_timeout_s=0.3) as (reader, writer):

        async def send() -> None:
            for part in parts:
                writer.write(part)
                await asyncio.sleep(0.03)

        sending = asyncio.create_task(send())
        assert (await reader.read()).count(b"200 OK") == parts.count(GET)
        assert parts == [] or len(parts) < 100 or not sending.done(), "bytes that come late gain no time"
        sending.cancel()


async def test_a_slow_answer_and_a_pause_between_requests_are_not_late_headers() -> None:
    async with connected(header_timeout_s=0.3, keep_alive_s=1) as (reader, writer):
        writer.write(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        assert await answer(reader) == (b"HTTP/1.1 200 OK", b"/slow")
        await asyncio.sleep(0.6)
        writer.write(GET)
        assert await answer(reader) == (b"HTTP/1.1 200 OK", b"/path")
        began = time.monotonic()
        assert await reader.read() == b""
        assert time.monotonic() - began > 0.9


def test_idle_connections_outlive_the_pools_of_proxies() -> None:
    """nginx, Envoy and cloud balancers keep theirs for 60 s."""
    settings = Settings()
    assert ConnectionConfig(Mock(), settings, 10).timeout_keep_alive == settings.keep_alive_s == 75


async def test_one_connection_too_many_is_refused_before_it_sends_anything() -> None:
    async with connected(max_connections=2) as (reader, writer):
        port = writer.get_extra_info("peername")[1]
        others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        status, body = await answer(others[1][0])
        assert status == b"HTTP/1.1 503 Service Unavailable"
        assert json.loads(body)["error"]["code"] == "too_many_connections"
        assert await others[1][0].read() == b""
        others[1][1].close()
        writer.write(GET)
        assert (await answer(reader))[1] == b"/path"
        others[0][1].close()
        while True:
            again, sender = await asyncio.open_connection("127.0.0.1", port)
            sender.write(GET)
            status, _ = await answer(again)
            sender.close()
            if status == b"HTTP/1.1 200 OK":
                break
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("proxies", "refused"), [("192.0.2.1", True), ("127.0.0.1", False)])
async def test_an_address_that_is_no_proxy_has_at_most_half_of_the_connections(
    monkeypatch: Any, proxies: str, refused: bool
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", proxies)
    async with connected(max_connections=4) as (_, first):
        port = first.get_extra_info("peername")[1]
        writers = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(1)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        status, _ = await answer(reader)
        assert (b"503" in status) is refused
        if refused:  # others are served meanwhile
            other = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
            other[1].write(GET)
            assert await answer(other[0]) == (b"HTTP/1.1 200 OK", b"/path")
            writers.append(other[1])
        for one in (*writers, writer):
            one.close()


@pytest.mark.parametrize(
    ("requested", "descriptors", "most"),
    [(None, 64, 32), (None, 1024, 768), (None, 2**20, 4096), (20_000, 2**20, 20_000), (32, 64, 32), (None, 16, 1)],
)
def test_the_most_connections_leave_descriptors_for_the_rest(
    requested: int | None, descriptors: int, most: int
) -> None:
    assert connection_limit(requested, descriptors) == most


def test_more_connections_than_descriptors_are_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match=r"--max-connections must be at most 768, not 769: .* 1024 open"):
        connection_limit(769, 1024)


async def test_a_connection_that_cannot_be_accepted_is_a_line_without_a_traceback(caplog: Any) -> None:
    loop = asyncio.get_running_loop()
    for number in (errno.EMFILE, errno.ENFILE):
        message = {"message": "socket.accept() out of system resource", "exception": OSError(number, "Too many")}
        log_accept_errors(loop, message)
    log_accept_errors(loop, {"message": "another", "exception": ValueError("x")})
    assert [(record.getMessage(), bool(record.exc_info)) for record in caplog.records] == [
        ("no connection can be accepted: Too many", False),
        ("no connection can be accepted: Too many", False),
        ("another", True),
    ]


# --- Clients that do not read


async def unread(port: int, request: bytes) -> socket.socket:
    """A client with little room, which sends a request and reads nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", port))
    await loop.sock_sendall(client, request)
    return client


def post(body: dict[str, Any], version: str = "1.1") -> bytes:
    content = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/{version}\r\nhost: x\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


async def test_a_stream_that_nobody_reads_is_aborted(live: Any, caplog: Any) -> None:
    engine = FakeEngine([Delta("x" * 1_000_000)] * 100)
    async with live(engine, write_timeout_s=0.3) as url, asyncio.timeout(SOON_S):
        with await unread(int(url.rpartition(":")[2]), post({**CHAT, "stream": True})):
            while not engine.answers:
                await asyncio.sleep(0.01)
            await engine.answers[0].left.wait()
    assert "its client read nothing for 0.3 s" in caplog.text


@pytest.mark.parametrize("head", [b"host: x\r\n", b"host: x\r\nconnection: close\r\n"], ids=["kept", "closing"])
async def test_a_whole_answer_that_nobody_reads_is_dropped(head: bytes, caplog: Any) -> None:
    caplog.set_level(logging.WARNING)
    async with connected(write_timeout_s=0.3) as (_, writer):
        port = writer.get_extra_info("peername")[1]
        with await unread(port, b"GET /large HTTP/1.1\r\n" + head + b"\r\n"):
            while "its client read nothing" not in caplog.text:
                await asyncio.sleep(0.01)


async def test_a_client_that_reads_slowly_is_not_cut_off() -> None:
    config = ConnectionConfig(Mock(), Settings(write_timeout_s=1000), 10)
    connection, transport = Connection(config, Mock(connections=set(), tasks=set()), {}), Mock()
    transport.get_write_buffer_size.return_value = 100
    connection.connection_made(transport)
    connection.pause_writing()
    for left, aborted in ((60, False), (1, False), (1, True)):
        transport.get_write_buffer_size.return_value = left
        connection._check_reader()
        assert transport.abort.called == aborted
    connection.connection_lost(None)


# --- Clients that close their half


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [SCRIPT, [Delta("a" * 100), *SCRIPT]], ids=["short", "long"])
async def test_a_client_that_closes_its_half_gets_its_answer(live: Any, stream: bool, script: Any) -> None:
    async with live(FakeEngine(script)) as url, asyncio.timeout(SOON_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(post({**CHAT, "stream": stream}))
        writer.write_eof()
        got = await reader.read()
        writer.close()
    assert got.count(b"HTTP/1.1 200 OK") == 1
    assert b"w\xc3\xb6rld" in got
    assert (b"[DONE]" in got) == stream
    assert got.startswith((b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200", b"HTTP/1.1 200"))


@pytest.mark.parametrize("rest", [b"", b"a"], ids=["HTTP/1.0", "half a body"])
async def test_the_end_of_what_cannot_be_a_half_is_the_end(live: Any, rest: bytes) -> None:
    """Proxies that speak HTTP/1.0 close a connection to abort, and half a body is no request."""
    engine = FakeEngine([Delta("a"), None])
    request = post(CHAT, "1.1" if rest else "1.0")
    async with live(engine) as url, asyncio.timeout(SOON_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(request[: -len(rest)] if rest else request)
        await asyncio.sleep(0.1)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        if not rest:
            await engine.answers[0].left.wait()
