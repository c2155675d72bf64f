"""The process that tries each grammar before the server compiles it: `main` runs there, `Trial` in the server.

A compilation cannot be stopped, and may need any memory. So the process forks for each one, and the fork has limits: of
processor time, of time and of memory. What ends it there cannot harm the server. It passes on llguidance's notation, no
compiled grammar: that cannot leave a process. Compiling the same text again takes as much time and memory.

Each message is one line of JSON. The process has one thread, and ends with its input.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any

from .call_grammar import refusal_of_tool
from .compiler import Vocabulary, compiled, grammar_text
from .grammar_errors import TOO_COMPLEX, GrammarError
from .json_schema import placed

PATIENCE = 30.0  # on a busy machine: seconds for each second of a processor
STACK_BYTES = 1 << 20  # less than any thread of the server has

TIME, MEMORY, WAITED = "time", "memory", "waited"  # limits
# SIGKILL comes from outside, as from a machine that is out of memory at the moment: it says nothing about the grammar.
LIMITS: dict[int, str] = {signal.SIGPROF: TIME, signal.SIGALRM: WAITED, signal.SIGABRT: MEMORY, signal.SIGKILL: WAITED}
CODE = "import sys; sys.path[:] = sys.argv[1:]; from {} import main; main()"


class TrialEnded(Exception):
    """The process was closed, or does not start."""


class Trial:
    """Tries one grammar at a time, in a process that starts with the first one."""

    def __init__(self, describe: Callable[[], Mapping[str, Any]], timeout_s: float, memory_mb: int) -> None:
        """`describe` returns the vocabulary as `compiler.describe` does."""
        self._describe = describe
        self._limits = {"timeout_s": timeout_s, "memory_bytes": memory_mb << 20}
        self._process: subprocess.Popen[bytes] | None = None
        self.closed = False
        self._lock = threading.Lock()
        self._running = threading.Lock()

    def run(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `text` of a grammar and the `bytes` that it takes, the reason why it is `refused`, or the `limit`
        that it exceeds. `job` has the arguments of `grammar_text`, or a `text`. Blocks; one thread only. Raises
        `TrialEnded`."""
        with self._running:
            for _ in range(2):  # a process that has ended was killed by others, not by this job
                try:
                    process = self._started()
                    _send(process.stdin, job)
                    return self._reply(process)
                except (OSError, ValueError):
                    self._stop()
            raise TrialEnded

    def close(self) -> None:
        """End the process; a `run` in another thread raises `TrialEnded`."""
        with self._lock:
            self.closed = True
            if self._process is not None:
                _kill(self._process)
        with self._running:
            self._stop()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self.closed:
                raise TrialEnded
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-c", CODE.format(__name__), *sys.path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,  # what Rust prints when it aborts
                    start_new_session=True,  # Ctrl-C in a terminal is for the server
                )
                _send(self._process.stdin, {**self._describe(), **self._limits})
            return self._process

    def _reply(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Raises `OSError` and `ValueError` if there is none."""
        assert process.stdout is not None
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        limit_s = 2 * PATIENCE * self._limits["timeout_s"] + 60  # that of the fork, and a start on a busy machine
        if not poll.poll(limit_s * 1000):
            raise TimeoutError
        reply = json.loads(process.stdout.readline())
        return dict(reply)

    def _stop(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            _kill(process)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with suppress(OSError):
                    pipe.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and what it has forked."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _send(pipe: IO[bytes] | None, message: Mapping[str, Any]) -> None:
    assert pipe is not None
    pipe.write(json.dumps(message).encode() + b"\n")
    pipe.flush()


def main() -> None:
    """Try grammars until the input ends."""
    for number in LIMITS.keys() - {signal.SIGKILL}:  # a process inherits what its parent ignores and blocks
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    setup = json.loads(sys.stdin.buffer.readline() or b"null")
    if setup is None:
        return
    vocabulary = Vocabulary(setup)
    for line in sys.stdin.buffer:
        job = json.loads(line)
        read, write = os.pipe()
        fork = os.fork()
        if not fork:
            _try(vocabulary, job, setup["timeout_s"], setup["memory_bytes"], write)
        os.close(write)
        with open(read, "rb") as pipe:
            reply = pipe.read()
        _, status = os.waitpid(fork, 0)
        if status:  # whatever it has replied before that: each job has one reply
            limit = LIMITS.get(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None
            _send(sys.stdout.buffer, {"limit": limit} if limit else {"refused": TOO_COMPLEX})
        else:
            sys.stdout.buffer.write(reply)
            sys.stdout.buffer.flush()


def _try(vocabulary: Vocabulary, job: dict[str, Any], timeout_s: float, memory_bytes: int, write: int) -> None:
    """Compile a grammar within limits, in a process of its own, reply to a pipe, and end the process."""
    status = 1
    try:
        before = _limit(timeout_s, memory_bytes)
        reply = _outcome(vocabulary, job)
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)
        with open(write, "wb") as pipe:
            _send(pipe, {**reply, "bytes": max(0, _size_bytes() - before)})
        status = 0
    except MemoryError:
        os.abort()
    finally:
        os._exit(status)


def _limit(timeout_s: float, memory_bytes: int) -> int:
    """Set the limits of this process. Returns its size in bytes."""
    size = _size_bytes()
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_STACK: STACK_BYTES}
    if size:
        limits[resource.RLIMIT_AS] = size + memory_bytes
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    # These signals end a process that does not handle them.
    signal.setitimer(signal.ITIMER_PROF, timeout_s)
    signal.setitimer(signal.ITIMER_REAL, timeout_s * PATIENCE)
    return size


def _outcome(vocabulary: Vocabulary, job: dict[str, Any]) -> dict[str, Any]:
    try:
        text = job.pop("text", None) or grammar_text(vocabulary, **job)
    except GrammarError as error:
        return {"refused": str(error), "place": error.place}
    try:
        compiled(vocabulary, text)
    except GrammarError as error:
        if job.get("calls") and (found := refusal_of_tool(job["calls"])):
            return {"refused": found[0], "place": found[1]}
        return {"refused": placed(job["schema"], str(error)) if job.get("schema") else str(error)}
    return {"text": text}


def _size_bytes() -> int:
    """Return the size of this process's address space; 0 if the system does not say."""
    with suppress(OSError), open("/proc/self/statm") as sizes:
        return int(sizes.read().split()[0]) * resource.getpagesize()
    return 0
