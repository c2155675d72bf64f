"""Sends every bomb at full size to a server on the embedded model, and measures how long `/health` waits meanwhile, and
what the server's memory grows by:

    python -m tests.chaos.bodies --bytes 1080000 --times 5

Of several times, the shortest of the longest waits counts: the others are what else the machine does.
"""

from __future__ import annotations

import argparse
import http.client
import json
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

from ..support.bombs import BOMBS
from ..support.servers import start_server, stop_server


def post(netloc: str, path: str, body: bytes) -> int:
    connection = http.client.HTTPConnection(netloc, timeout=600)
    connection.request("POST", path, body, {"content-type": "application/json"})
    return connection.getresponse().status


class Prober(threading.Thread):
    """Requests `/health` again and again, and keeps the longest wait."""

    def __init__(self, netloc: str) -> None:
        super().__init__(daemon=True)
        self._connection = http.client.HTTPConnection(netloc, timeout=600)
        self.longest_s = 0.0
        self.ended = False

    def run(self) -> None:
        while not self.ended:
            started = time.perf_counter()
            self._connection.request("GET", "/health")
            self._connection.getresponse().read()
            self.longest_s = max(self.longest_s, time.perf_counter() - started)
            time.sleep(0.002)


def memory_mb(process: int, name: str) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=1_080_000)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--only", default="", help="bombs with this in their names")
    arguments = parser.parse_args()
    server = start_server("--max-body-bytes", str(arguments.bytes))
    netloc, process = urlsplit(server.url).netloc, server.process.pid
    longest_s = most_mb = 0.0
    try:
        for name, (path, build) in BOMBS.items():
            if arguments.only not in name:
                continue
            body = build(arguments.bytes)
            waits_s, grown_mb, status = [], 0.0, 0
            for _ in range(arguments.times):
                Path(f"/proc/{process}/clear_refs").write_text("5")  # the peak starts again
                before_mb, prober = memory_mb(process, "VmRSS"), Prober(netloc)
                prober.start()
                status = post(netloc, path, body)
                prober.ended = True
                prober.join()
                waits_s.append(prober.longest_s)
                grown_mb = max(grown_mb, memory_mb(process, "VmHWM") - before_mb)
            longest_s, most_mb = max(longest_s, min(waits_s)), max(most_mb, grown_mb)
            print(f"{name:55} HTTP {status}, /health {min(waits_s) * 1000:6.1f} ms, +{grown_mb:.0f} MB", flush=True)
    finally:
        stop_server(server)
    print(json.dumps({"bytes": arguments.bytes, "health_ms": longest_s * 1000, "memory_mb": most_mb}))


if __name__ == "__main__":
    main()
