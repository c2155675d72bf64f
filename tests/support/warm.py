"""Servers forked from a process that has imported what they need: to import it takes two seconds of a core.

As a program this file is that process: `python -P tests/support/warm.py DESCRIPTOR`, of a Unix socket. Each message
there is a command to fork, with its standard streams and a pipe for its process number and its exit code. The program
only imports, so it has one thread, and nothing is locked in its copies. A copy has the variables, folder, arguments and
signals of a process that is started; nothing of the tests is in it.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

MESSAGE_BYTES = 1 << 17
PYTHON = [sys.executable, "-P"]  # how a command begins that can be forked
# All that `asynclane serve` imports, in whichever process.
IMPORTED = (
    "asynclane.server.cli.main",
    "asynclane.server.cli.serve",
    "asynclane.server.engine.wiring",
    "asynclane.server.text.tokenizer",
    "numpy.random",
    "transformers.tokenization_utils_tokenizers",
)


class Forked:
    """A process forked from the warm one, with the members of `Popen` that tests of servers use. Its standard input and
    output are null devices, its standard error is a pipe."""

    stdin = stdout = None

    def __init__(self, channel: socket.socket, command: Sequence[str], environ: dict[str, str]) -> None:
        message = json.dumps({"arguments": command, "environ": environ, "folder": os.getcwd()}).encode()
        read_error, error = os.pipe()
        read_states, states = os.pipe()
        nowhere = os.open(os.devnull, os.O_RDWR)
        try:
            socket.send_fds(channel, [message], [nowhere, nowhere, error, states])
        finally:
            for descriptor in (nowhere, error, states):
                os.close(descriptor)
        self.args = list(command)
        self.stderr: IO[str] = os.fdopen(read_error, encoding="utf-8")
        self._states = os.fdopen(read_states)
        number = self._states.readline()
        assert number, "the warm process has ended: see its message above"
        self.pid = int(number)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises `subprocess.TimeoutExpired` after `timeout` seconds."""
        if self.returncode is None:
            if not select.select([self._states], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int(self._states.readline())
            self._states.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork(command: Sequence[str], environ: dict[str, str]) -> Forked:
    """Start a command that begins with `PYTHON`, on Linux."""
    assert list(command[:2]) == PYTHON
    return Forked(_channel(), command[2:], environ)


@functools.cache
def _channel() -> socket.socket:
    """To the warm process, which ends with this one."""
    from asynclane.server.cli.main import SPINS

    from .processes import environment, heeding

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = heeding([*PYTHON, __file__, str(theirs.fileno())])
        # What libraries read as they are imported. OpenBLAS would start a thread for each core.
        environ = {"GOMP_SPINCOUNT": SPINS} | environment(OPENBLAS_NUM_THREADS="1")
        process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

    @atexit.register
    def end() -> None:
        ours.close()
        process.wait()

    return ours


class Copy:
    """A copy of the warm process: its number, the pipe for what becomes of it, and a descriptor that can be read when
    it has ended."""

    def __init__(self, number: int, states: int) -> None:
        self._number = number
        self._states = states
        self.ended = os.pidfd_open(number)
        os.write(states, f"{number}\n".encode())

    def report(self) -> None:
        """Report the exit code of a copy that has ended."""
        _, status = os.waitpid(self._number, 0)
        with suppress(BrokenPipeError):  # nobody waits for it
            os.write(self._states, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        self.close()

    def close(self) -> None:
        os.close(self.ended)
        os.close(self._states)


def make_copies(channel: socket.socket) -> list[str]:
    """Return in each copy, with its arguments; in this process when the other end of the channel is closed, with
    none."""
    copies: dict[int, Copy] = {}
    while True:
        ready, _, _ = select.select([channel.fileno(), *copies], [], [])
        for ended in ready:
            if ended != channel.fileno():
                copies.pop(ended).report()
                continue
            message, descriptors, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, 4)
            if not message:
                return []
            *streams, states = descriptors
            number = os.fork()
            if not number:
                channel.close()
                for copy in copies.values():
                    copy.close()
                os.close(states)
                return become(json.loads(message), streams)
            for stream in streams:
                os.close(stream)
            new = Copy(number, states)
            copies[new.ended] = new


def become(message: dict[str, Any], streams: Sequence[int]) -> list[str]:
    """Give a copy what a process inherits, and return its arguments."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(message["environ"])
    os.chdir(message["folder"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return list(message["arguments"])


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes
    for name in IMPORTED:
        importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1:
        raise SystemExit("an import has started a thread, so this process cannot be forked")
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        arguments = make_copies(channel)
    if arguments[:1] == ["-m"]:
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
