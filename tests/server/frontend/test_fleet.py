"""Front ends that cannot be started, at first or in the place of others."""

from __future__ import annotations

import asyncio
import errno
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, cast

import pytest

from asynclane.server.engine.messages import FromEngine, ToEngine
from asynclane.server.engine.port import Port
from asynclane.server.frontend import fleet as module
from asynclane.server.frontend.fleet import MOST_DEATHS, Fleet
from asynclane.server.frontend.process import Setup
from asynclane.server.metrics import Metrics

from ...support.servers import WAIT_S

SETUP = Setup(1, settings={}, card={}, directory="", mask_id=0, keys=[], max_connections=1, descriptors=1)
# Says that it serves, and ends with the first byte of its setup.
SHORT_LIVED = r"""
import socket, struct, sys
end = socket.socket(fileno=int(sys.argv[1]))
message = b"\x91\x91\xa7Serving"
end.sendall(struct.pack("=I", len(message)) + message)
end.recv(1)
"""
# Says that it serves, closes its connection when it is to stop, and hangs.
HANGS = r"""
import socket, struct, sys, time
end = socket.socket(fileno=int(sys.argv[1]))
message = b"\x91\x91\xa7Serving"
end.sendall(struct.pack("=I", len(message)) + message)
while b"Stop" not in end.recv(65536): pass
end.close()
time.sleep(600)
"""
# Ends with the first bytes of its setup.
NEVER_SERVES = r"""
import socket, sys
socket.socket(fileno=int(sys.argv[1])).recv(4)
sys.exit(3)
"""
start_process = subprocess.Popen


class Engine:
    """As much of an engine as a fleet needs."""

    def __init__(self) -> None:
        self.death = Future[str]()

    def connect(self, send: Callable[[list[FromEngine]], None]) -> Port:
        def receive(port: Port, messages: list[ToEngine]) -> None:
            port.serving()

        return Port(receive, send)  # type: ignore[arg-type]

    def disconnect(self, port: Port) -> None:
        pass

    def fail(self, reason: str) -> None:
        self.death.set_result(reason)


def no_process(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def killed_at_once(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
    process = start_process([sys.executable, "-I", "-S", "-c", ""])
    process.wait()
    return process


FAULTS = [no_process, killed_at_once]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as listener:
        yield listener


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fleet_that_cannot_start_says_so(
    fault: Callable[..., Any], listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", fault)
    with pytest.raises(ValueError, match=r"^a front end did not start: .*(unavailable|Broken pipe|reset)"):
        await Fleet(Engine(), Metrics(), listener, SETUP).start(2)  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_front_end_that_cannot_be_replaced_is_tried_again_until_the_engine_fails(
    fault: Callable[..., Any],
    listener: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine, faults = Engine(), [fault] * MOST_DEATHS

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        if not caplog.messages:
            theirs = str(options["pass_fds"][0])
            return start_process([sys.executable, "-I", "-S", "-c", SHORT_LIVED, theirs], **options)
        return cast("subprocess.Popen[bytes]", faults.pop()())

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    await Fleet(engine, Metrics(), listener, SETUP).start(1)  # type: ignore[arg-type]
    async with asyncio.timeout(WAIT_S):
        while not engine.death.done():
            await asyncio.sleep(0.01)
    assert engine.death.result() == f"frontend-1 has ended {MOST_DEATHS + 1} times within 60 s"
    assert not faults
    assert [message.split(" (")[0] for message in caplog.messages] == ["frontend-1 has ended"] + [
        "frontend-1 does not start"
    ] * MOST_DEATHS


def run_instead(monkeypatch: pytest.MonkeyPatch, *codes: str) -> list[subprocess.Popen[bytes]]:
    """The front ends that start run the last of `codes` once the others have been run. They come into the list."""
    started: list[subprocess.Popen[bytes]] = []

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        code, theirs = codes[min(len(started), len(codes) - 1)], str(options["pass_fds"][0])
        started.append(start_process([sys.executable, "-I", "-S", "-c", code, theirs], **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    return started


async def test_a_front_end_that_ends_before_it_serves_is_no_start_and_not_replaced(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started = run_instead(monkeypatch, HANGS, NEVER_SERVES)
    with pytest.raises(ValueError, match=r"^a front end did not start: frontend-2 has ended \(exit code 3\)$"):
        await Fleet(Engine(), Metrics(), listener, SETUP).start(2)  # type: ignore[arg-type]
    assert [process.poll() is None for process in started] == [False, False]
    assert not caplog.messages


async def test_how_often_a_front_end_may_end_does_not_depend_on_the_others(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, engine = run_instead(monkeypatch, HANGS), Engine()
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    fleet = Fleet(engine, Metrics(), listener, SETUP)  # type: ignore[arg-type]
    await fleet.start(2)
    async with asyncio.timeout(WAIT_S):
        for _ in range(MOST_DEATHS):
            for process in started[-2:]:
                process.kill()
            count = len(started) + 2
            while len(started) < count:
                await asyncio.sleep(0.01)
    assert not engine.death.done()
    fleet.kill()


async def test_a_front_end_that_hangs_when_it_is_to_stop_does_not_outlive_the_server(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = run_instead(monkeypatch, HANGS)
    monkeypatch.setattr(module, "FLUSH_S", -1.0)
    fleet = Fleet(Engine(), Metrics(), listener, SETUP)  # type: ignore[arg-type]
    await fleet.start(1)
    await fleet.stop()
    assert started[0].poll() is not None
