"""The server that is measured: a process of `asynclane serve` that this program starts, or one that runs already."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from .tally import Scrape, read_metrics

START_S = 600.0  # a checkpoint of tens of gigabytes is read, and graphs are captured
STOP_S = 30.0
POLL_S = 0.02
MEMORY = Path("/dev/shm")
ROOM_BYTES = 40 * 2**30  # more than the largest shape takes
SHOWN_LINES = 5
ASYNCLANE = (sys.executable, "-P", "-m", "asynclane.server", "serve")


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is ready, and the seconds that its start took, if this program started it."""

    host: str
    port: int
    model: str
    longest: int
    start_s: float | None = None
    pid: int | None = None

    def scrape(self) -> Scrape:
        """Raises `ValueError`."""
        try:
            text = httpx.get(f"http://{self.host}:{self.port}/metrics", timeout=60).text
        except httpx.HTTPError as error:
            raise ValueError(f"the server does not answer: {error}") from None
        return read_metrics(text, time.monotonic(), {} if self.pid is None else processor_seconds(self.pid))


def connect(url: str) -> Server:
    """Return the server at a URL. Raises `ValueError` if it is not ready, or no asynclane."""
    found = re.fullmatch(r"http://([^/:]+):(\d+)/?", url)
    if not found:
        raise ValueError(f"{url!r} is no http://HOST:PORT")
    return _known(found[1], int(found[2]))


def _known(host: str, port: int, start_s: float | None = None, pid: int | None = None) -> Server:
    try:
        (model,) = httpx.get(f"http://{host}:{port}/v1/models", timeout=60).raise_for_status().json()["data"]
        return Server(host, port, model["id"], model["max_model_len"], start_s, pid)
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"no asynclane server at http://{host}:{port}: {error}") from None


@contextmanager
def started(flags: Sequence[str], command: Sequence[str] = ASYNCLANE) -> Iterator[Server]:
    """Start a server and end it with the block. Raises `ValueError` with the end of its log if it does not start."""
    host, port = "127.0.0.1", _free_port()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        begun = time.monotonic()
        process = subprocess.Popen(
            [*command, "--host", host, "--port", str(port), *flags], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            while not _ready(host, port):
                if process.poll() is not None or time.monotonic() - begun > START_S:
                    log.seek(0)
                    last = " | ".join(line.strip() for line in log.readlines()[-SHOWN_LINES:])
                    raise ValueError(f"the server did not start: {last}")
                time.sleep(POLL_S)
            yield _known(host, port, time.monotonic() - begun, process.pid)
        finally:
            _end(process)


def _ready(host: str, port: int) -> bool:
    try:
        return httpx.get(f"http://{host}:{port}/ready", timeout=5).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def processor_seconds(pid: int) -> dict[int, float]:
    """Return the processor's seconds of a process and of those that it started, by number; none without Linux."""
    seconds, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
            seconds[int(path.parent.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    family, grown = {pid}, True
    while grown:
        more = {child for child, parent in parents.items() if parent in family} - family
        family, grown = family | more, bool(more)
    return {number: seconds[number] for number in sorted(family) if number in seconds}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def random_weights(shape: str, directory: Path | None, written: bool = True) -> Iterator[Path]:
    """Yield a checkpoint of a shape with random weights: `directory`, which is kept and used again, or a temporary
    folder, in memory if it has room. Not `written`: the server makes the weights. Raises `ValueError` if it cannot be
    written."""
    if directory is not None:
        whole = (directory / "tokenizer_config.json").is_file()  # the last file of a checkpoint
        if not whole or (written and not any(directory.glob("*.safetensors"))):
            _write(shape, directory, written)
        yield directory
        return
    in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM_BYTES
    with tempfile.TemporaryDirectory(prefix="asynclane-", dir=MEMORY if in_memory else None) as folder:
        _write(shape, Path(folder) / shape, written)
        yield Path(folder) / shape


def _write(shape: str, directory: Path, weights: bool) -> None:
    """In a process of its own, so that this one holds neither torch nor a part of the GPU."""
    command = [sys.executable, "-P", "-m", "asynclane.bench.steps.checkpoint", str(directory), "--shape", shape]
    command.append("--weights" if weights else "--no-weights")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"no checkpoint of {shape}: {(done.stderr.splitlines() or ['?'])[-1]}")


def machine() -> dict[str, Any]:
    """Return the GPU and its driver, by nvidia-smi; None without one."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
        card, _, driver = done.stdout.strip().partition(", ")
    except (OSError, subprocess.SubprocessError):
        return {"card": None, "driver": None}
    return {"card": card, "driver": driver}
