"""The processes of other ranks: what comes of one that fails, hangs or ends, and how all end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from asynclane.models.checkpoint.config import ModelError, read_config
from asynclane.models.checkpoint.registry import Hardware, Loaded, check_ranks
from asynclane.models.exec import followers as module
from asynclane.models.exec.followers import Followers
from asynclane.models.exec.memory import Memory
from asynclane.models.ranks import Setup, loaded_with, start_ranks
from asynclane.scheduler.contract import Placement

from ..support.driver import MODEL
from ..support.scale import ALL, LONG

ROOT = str(Path(__file__).parents[2])
BAD = "tests.support.bad_rank"
WAIT_S = 40


@pytest.fixture(autouse=True)
def found_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)


def ended(process: int) -> bool:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("fails", "rank 1: no memory for the weights"),
        pytest.param("ends", r"rank 1 has ended \(exit code 3\)", marks=LONG),
    ],
)
def test_a_rank_that_cannot_load_is_reported_with_its_reason(
    fault: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asynclane.models.ranks.REASON_S", 0.1)
    followers = Followers(2, BAD, fault)
    loading = Future[Loaded]()
    try:
        with pytest.raises(ModelError, match=message):
            followers.meeting().passed("loaded", None)
        with pytest.raises(ModelError, match=message):  # the first rank waits
            loaded_with(followers, Future())
        loading.set_exception(ModelError("what the first rank says"))
        with pytest.raises(ModelError, match="what the first rank says"):
            loaded_with(followers, loading)
    finally:
        followers.close()


@LONG
def test_ranks_that_do_not_come_are_named_after_a_deadline() -> None:
    ranks, missing = (3, "1, 2") if ALL else (2, "1")
    followers = Followers(ranks, BAD, "hangs")
    processes = [follower.process.pid for follower in followers._followers]
    try:
        with pytest.raises(ModelError, match=f"rank {missing} of {ranks} is not running in time"):
            followers.meeting().passed("running", 0.1)
    finally:
        followers.close()
    assert all(map(ended, processes))
    assert not followers.failure.done(), "they were closed"


def test_processes_that_cannot_be_started_are_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ModelError, match="the processes of --tensor-parallel-size 2 cannot be started"):
        Followers(2, BAD, "hangs")


@LONG
def test_a_rank_ends_with_the_first_ones_process() -> None:
    code = (
        "import sys, time; from asynclane.models.exec.followers import Followers;"
        f"print(Followers(2, {BAD!r}, 'hangs')._followers[0].process.pid, flush=True); time.sleep(600)"
    )
    path = os.pathsep.join(filter(None, [ROOT, *sys.path]))
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    ) as first:
        assert first.stdout is not None
        rank = int(first.stdout.readline())
        os.kill(rank, signal.SIGTERM)  # of a terminal's group: not its business
        time.sleep(0.2)
        first.kill()
    assert ended(rank)


def test_too_few_devices_or_sizes_that_fp8_cannot_take_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_config(MODEL)
    check_ranks(MODEL, config, Hardware("cpu"), 2)
    monkeypatch.setattr("asynclane.models.checkpoint.registry._lacking", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ModelError, match="--tensor-parallel-size 2 needs 2 GPUs, torch sees 1"):
        check_ranks(MODEL, config, Hardware("cuda"), 2)


def test_a_network_that_cannot_be_split_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_started", lambda *arguments: pytest.fail("a process was started"))
    setup = Setup(MODEL, read_config(MODEL), Memory(4, 16, 128), Hardware("cpu"), [1])
    with pytest.raises(ModelError, match="--tensor-parallel-size 3 does not divide"):
        start_ranks(setup, 3)


def test_steps_and_placements_arrive_in_order_and_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []

    class Connection:
        def send_bytes(self, message: bytes) -> None:
            sent.append(bytes(message))

        def recv_bytes(self) -> bytes:
            if not sent:
                raise EOFError
            return sent.pop(0)

    followers = Followers.__new__(Followers)
    connection: Any = Connection()
    followers._heads, followers._followers = {}, [module.Follower(module.Rank(1, 2), None, connection)]  # type: ignore[arg-type]
    first = module.FirstRank.__new__(module.FirstRank)
    first._connection = connection
    followers.place([Placement(3, np.array([1, 2], np.int32), (4, 5), ((6, 7),))])
    for number in range(module.MOST_HEADS + 2):
        followers.step(("key", number), np.array([number, -1], np.int32))
    assert len(followers._heads) == 2
    placed: list[Any] = []
    steps: list[Any] = []
    with pytest.raises(EOFError):
        first.follow(placed.extend, lambda key, words: steps.append((key, words.tolist())))
    assert [(p.slot, p.prompt.tolist(), p.pages, p.copied) for p in placed] == [(3, [1, 2], (4, 5), ((6, 7),))]
    assert steps == [(("key", number), [number, -1]) for number in range(module.MOST_HEADS + 2)]


@LONG
def test_a_start_that_hangs_ends_the_command_all_the_same() -> None:
    """The first rank waits for one that has failed: the process ends with one line and exit code 2."""
    code = (
        "import sys, threading; from asynclane.server.cli import main; from asynclane.models.ranks import RankFailed\n"
        "def fail(*_):\n"
        "    threading.Thread(target=threading.Event().wait).start()\n"
        "    raise RankFailed('rank 1: no memory')\n"
        "main._run = fail; sys.exit(main.main(['decoders']))"
    )
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_S, env=os.environ | {"PYTHONPATH": path}
    )
    assert (done.returncode, done.stderr) == (2, "asynclane: rank 1: no memory\n")
