"""The other ranks' processes, as the first one sees them: it plans, and sends each step to all; they follow.

A follower hears nothing of requests and sends no results. Between two processes lies a pair of sockets: the end of
either process is the end of the connection.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch.distributed as dist

from ...scheduler.contract import Ints, Placement
from ..checkpoint.config import ModelError
from ..checkpoint.split import Rank
from .group import Meeting

END_S = 5.0  # in which it has ended, once its connection is closed
PLACE, STEP = b"p", b"s"  # kinds of messages
FAILED = "failed: "  # a message that is no stage begins so
MOST_HEADS = 1024
SENT_BYTES = 4 * 2**20  # of steps that a follower need not have read
CODE = "import sys; sys.path[:] = sys.argv[2:]; from {} import main; main()"


@dataclass(frozen=True, slots=True, eq=False)
class Follower:
    """Another rank's process."""

    rank: Rank
    process: subprocess.Popen[bytes]
    connection: Connection
    passed: set[str] = field(default_factory=set)  # stages


class Followers:
    """`failure` has the reason once one of them has ended or failed, unless they are closed; its callbacks run in any
    thread."""

    def __init__(self, size: int, module: str, setup: object) -> None:
        """Start the processes: `main` of a `module`, which begins with `first_message`. Raises `ModelError`."""
        self.failure: Future[str] = Future()
        self._folder = tempfile.TemporaryDirectory(prefix="asynclane-ranks-")
        self._path = str(Path(self._folder.name) / "meeting")
        self._heads: dict[Hashable, bytes] = {}
        self._followers: list[Follower] = []
        self._change = threading.Condition()
        self._closed = False
        self._listener = threading.Thread(target=self._listen, name="ranks", daemon=True)
        try:
            for number in range(1, size):
                self._followers.append(_started(Rank(number, size), module))
            for follower in self._followers:
                follower.connection.send_bytes(pickle.dumps((follower.rank, self._path, setup)))
        except OSError as error:
            self.close()
            raise ModelError(f"the processes of --tensor-parallel-size {size} cannot be started: {error}") from None
        self._listener.start()

    def meeting(self) -> Meeting:
        """For the first rank."""
        return Meeting(Rank(0, len(self._followers) + 1), self._path, self._await)

    def place(self, placements: Sequence[Placement]) -> None:
        self._send(PLACE + pickle.dumps(tuple(placements)))

    def step(self, key: Hashable, words: Ints) -> None:
        """Send a packed step. `key` says how it is unpacked."""
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) == MOST_HEADS:
                self._heads.clear()
            head = self._heads[key] = STEP + pickle.dumps(key)
        self._send(head, words.tobytes())

    def close(self) -> None:
        """End the processes."""
        self._closed = True
        for follower in self._followers:
            with suppress(OSError), socket.socket(fileno=os.dup(follower.connection.fileno())) as end:
                end.shutdown(socket.SHUT_RDWR)
        for follower in self._followers:
            try:
                follower.process.wait(END_S)
            except subprocess.TimeoutExpired:
                follower.process.kill()
                follower.process.wait()
        if self._listener.is_alive():
            self._listener.join(END_S)
        for follower in self._followers:
            follower.connection.close()
        self._folder.cleanup()
        if dist.is_initialized() and dist.get_backend() == "gloo":
            dist.destroy_process_group()  # so that this process may have another one

    def _send(self, *messages: bytes) -> None:
        """Raises `OSError` if a follower has ended."""
        for follower in self._followers:
            for message in messages:
                follower.connection.send_bytes(message)

    def _await(self, stage: str, limit_s: float | None) -> None:
        """Wait until all have passed a stage. Raises `ModelError` if one fails, or has not within `limit_s`."""
        deadline = None if limit_s is None else time.monotonic() + limit_s
        with self._change:
            while missing := [f for f in self._followers if stage not in f.passed]:
                if self.failure.done():
                    raise ModelError(self.failure.result())
                rest_s = None if deadline is None else deadline - time.monotonic()
                if rest_s is not None and rest_s <= 0:
                    late = ", ".join(str(follower.rank.number) for follower in missing)
                    raise ModelError(f"rank {late} of {len(self._followers) + 1} is not {stage} in time")
                self._change.wait(rest_s)

    def _listen(self) -> None:
        """Hear stages and failures until one has ended."""
        living = {follower.connection: follower for follower in self._followers}
        while not self.failure.done() and not self._closed:
            for ready in wait(list(living)):
                assert isinstance(ready, Connection)
                self._hear(living[ready])

    def _hear(self, follower: Follower) -> None:
        message, reason = "", None
        try:
            message = follower.connection.recv_bytes().decode()
            if message.startswith(FAILED):
                reason = f"rank {follower.rank.number}: {message.removeprefix(FAILED)}"
        except (EOFError, OSError):
            reason = f"rank {follower.rank.number} has ended{_how(follower.process)}"
        with self._change:
            if reason is None:
                follower.passed.add(message)
            elif not self._closed:
                with suppress(InvalidStateError):
                    self.failure.set_result(reason)
            self._change.notify_all()


def _started(rank: Rank, module: str) -> Follower:
    """Raises `OSError`."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT_BYTES)
    command = [sys.executable, "-I", "-c", CODE.format(module), str(theirs.fileno()), *sys.path]
    with theirs:
        try:
            process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
        except OSError:
            ours.close()
            raise
    return Follower(rank, process, Connection(ours.detach()))


def _how(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(END_S)
    except subprocess.TimeoutExpired:
        return ""
    return f" (signal {-code})" if code < 0 else f" (exit code {code})"


# --- In a follower's process ----------------------------------------------------------------------------------------


class FirstRank:
    """The first rank, as a follower sees it. Its end, or that of its process, is this process's end."""

    def __init__(self, descriptor: int) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # of a terminal: the first rank decides
            signal.signal(number, signal.SIG_IGN)
        self._connection = Connection(descriptor)
        threading.Thread(target=_end_with, args=[descriptor], name="first-rank", daemon=True).start()

    def first_message(self) -> tuple[Meeting, object]:
        """The meeting of the ranks, and what this process needs besides."""
        rank, path, setup = pickle.loads(self._connection.recv_bytes())
        return Meeting(rank, path, self._pass), setup

    def fail(self, reason: str) -> NoReturn:
        """Report why this process ends, in one line."""
        with suppress(OSError):
            self._connection.send_bytes(f"{FAILED}{' '.join(reason.split())}".encode())
        os._exit(1)  # whatever hangs

    def follow(self, place: Callable[[Sequence[Placement]], None], step: Callable[[Hashable, Ints], None]) -> NoReturn:
        """Do what comes, in order, for ever."""
        while True:
            message = self._connection.recv_bytes()
            kind, content = message[:1], pickle.loads(message[1:])
            if kind == PLACE:
                place(content)
            else:
                step(content, np.frombuffer(bytearray(self._connection.recv_bytes()), np.int32))

    def _pass(self, stage: str, limit_s: float | None) -> None:
        self._connection.send_bytes(stage.encode())


def _end_with(descriptor: int) -> None:
    """End this process with the connection, also while it waits for a rank that has ended."""
    hung_up = select.poll()
    hung_up.register(descriptor, 0)
    if any(event & select.POLLHUP for _, event in hung_up.poll()):  # not if this process has closed it
        os._exit(0)
