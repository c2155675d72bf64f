"""The process that tries grammars ends with what it cannot bear, with its server and when it is closed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asynclane.server.structured import trial
from asynclane.server.structured.compiler import describe
from asynclane.server.structured.grammar_errors import TOO_COMPLEX
from asynclane.server.structured.trial import Trial, TrialEnded
from asynclane.server.text.tokenizer import Tokenizer

from ...support.http import TINY
from ...support.processes import started
from ...support.scale import LONG
from ...support.schema_bombs import ENDLESS

SMALL = {"schema": None, "regex": "[a-f]{3}", "choice": []}
BOMB = {"schema": json.dumps(ENDLESS["multiples"]), "regex": None, "choice": []}
WAIT_S = 40


@pytest.fixture(scope="module")
def description(text: Tokenizer) -> dict[str, Any]:
    return describe(text.backend.to_str(), text.pieces, sorted(text.end_ids), ['"', "}"])


@pytest.fixture
def tried(description: dict[str, Any]) -> Iterator[Trial]:
    made = Trial(lambda: description, timeout_s=60, memory_mb=512)
    yield made
    made.close()


def pid_of(tried: Trial) -> int:
    assert tried._process is not None
    return tried._process.pid


def wait_until_gone(process: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while os.path.exists(f"/proc/{process}"):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_process_that_was_killed_is_replaced(tried: Trial) -> None:
    first = tried.run(SMALL)
    assert first["text"]
    assert first["bytes"] < 64 << 20
    killed = pid_of(tried)
    os.kill(killed, signal.SIGKILL)
    assert tried.run(SMALL)["text"] == first["text"]
    assert pid_of(tried) != killed


def test_one_that_does_not_start_is_reported(tried: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "CODE", "raise SystemExit(3)  # {}")
    with pytest.raises(TrialEnded):
        tried.run(SMALL)
    assert not tried.closed


def forks_of(process: int) -> list[int]:
    return [int(fork) for fork in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def idle_pid_of(tried: Trial) -> int:
    """Start the process. A fork has ended before its reply comes."""
    tried.run(SMALL)
    assert not forks_of(pid_of(tried))
    return pid_of(tried)


def fork_of(process: int) -> int:
    """Wait until an idle process has forked."""
    deadline = time.monotonic() + WAIT_S
    while not (forks := forks_of(process)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return forks[0]


@pytest.mark.parametrize(
    ("number", "reply"),
    [
        (signal.SIGKILL, {"limit": trial.WAITED}),  # as of a machine that is out of memory
        (signal.SIGALRM, {"limit": trial.WAITED}),
        (signal.SIGPROF, {"limit": trial.TIME}),
        (signal.SIGABRT, {"limit": trial.MEMORY}),
        (signal.SIGSEGV, {"refused": TOO_COMPLEX}),
    ],
)
def test_the_signal_that_ends_a_fork_names_the_limit(tried: Trial, number: int, reply: dict[str, str]) -> None:
    process, replies = idle_pid_of(tried), list[dict[str, Any]]()
    runner = threading.Thread(target=lambda: replies.append(tried.run(BOMB)))
    runner.start()
    os.kill(fork_of(process), number)
    runner.join(WAIT_S)
    assert replies == [reply]
    assert pid_of(tried) == process


def test_a_fork_that_dies_after_its_reply_leaves_no_second_one(tried: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    dying = trial.CODE.replace("main()", "import os; os._exit = lambda status: os.abort(); main()")
    monkeypatch.setattr(trial, "CODE", dying)
    assert [tried.run(SMALL) for _ in range(3)] == [{"limit": trial.MEMORY}] * 3


def test_closing_it_ends_what_runs(tried: Trial) -> None:
    process, ended = idle_pid_of(tried), list[BaseException]()

    def run() -> None:
        try:
            tried.run(BOMB)
        except TrialEnded as error:
            ended.append(error)

    runner = threading.Thread(target=run)
    runner.start()
    fork = fork_of(process)
    tried.close()
    runner.join(WAIT_S)
    assert len(ended) == 1
    wait_until_gone(process)
    wait_until_gone(fork)
    with pytest.raises(TrialEnded):
        tried.run(SMALL)


@pytest.mark.parametrize("job", [pytest.param(SMALL, marks=LONG), BOMB], ids=["idle", "busy"])
def test_it_ends_with_its_server(job: dict[str, Any]) -> None:
    """However the server ends: it has no time to close anything."""
    code = f"""
import os, signal, threading, time
from pathlib import Path
from asynclane.server.structured.grammar import _described
from asynclane.server.structured.trial import Trial
from asynclane.server.text.tokenizer import Tokenizer
tried = Trial(lambda: _described(Tokenizer(Path({str(TINY)!r}))), timeout_s=1, memory_mb=512)
tried.run({SMALL!r})
threading.Thread(target=tried.run, args=[{job!r}], daemon=True).start()
print(tried._process.pid, flush=True)
time.sleep(0.05)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with started([sys.executable, "-P", "-c", code], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        process = int(server.stdout.readline())
        server.wait()
        wait_until_gone(process)
