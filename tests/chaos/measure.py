"""The memory of a process, and how long a server's `/health` takes, measured by another process all the time."""

from __future__ import annotations

import http.client
import json
import math
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from ..support.processes import started
from ..support.servers import front_ends

ROOT = Path(__file__).parents[2]
EVERY_S = 0.003
SOMETIMES_S = 0.03  # for limits of seconds, beside other tests


def memory_mb(process: int, name: str = "VmRSS") -> float:
    """The resident memory of a process and its front ends; its peak is `VmHWM`."""
    found = 0.0
    for one in (process, *front_ends(process)):
        lines = Path(f"/proc/{one}/status").read_text().splitlines()
        found += next(int(line.split()[1]) / 1000 for line in lines if line.startswith(name))
    return found


def forget_peak(process: int) -> None:
    for one in (process, *front_ends(process)):
        Path(f"/proc/{one}/clear_refs").write_text("5")


def percentile(times_s: Sequence[float], share: float) -> float:
    return sorted(times_s)[math.ceil(share * len(times_s)) - 1]


@contextmanager
def health_waits(url: str, every_s: float = EVERY_S) -> Iterator[dict[float, float]]:
    """After the block, the seconds of each request meanwhile, by the `perf_counter` at its start."""
    waits: dict[float, float] = {}
    command = [sys.executable, "-m", "tests.chaos.measure", urlsplit(url).netloc, str(every_s)]
    with started(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has begun
        yield waits
        waits.update(json.loads(process.communicate()[0]))


def main() -> None:
    connection = http.client.HTTPConnection(sys.argv[1], timeout=600)  # which ends with the process
    waits: list[tuple[float, float]] = []
    while not select.select([sys.stdin], [], [], float(sys.argv[2]))[0]:
        began = time.perf_counter()
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
        assert response.status == 200
        waits.append((began, time.perf_counter() - began))
        if len(waits) == 1:
            print(flush=True)
    print(json.dumps(waits))


if __name__ == "__main__":
    main()
