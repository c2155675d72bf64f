"""Sends all bodies and schemas that cost a careless server far more than their bytes, at full size. Prints what they
cost, and how long `/health` waits: `python -m tests.chaos.bombs --bytes 1080000`.

The memory is the server's, without the process that tries schemas, which `--grammar-memory-mb` bounds.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..support.bombs import BOMBS, CHAT
from ..support.schema_bombs import ENDLESS, ENDLESS_LEXER, HUGE_ENUM
from ..support.servers import Server, start_server, stop_server
from .measure import forget_peak, health_waits, memory_mb

FULL_BYTES = 1_080_000  # the default limit of the embedded models is a little more
TOGETHER = 8


@dataclass(frozen=True, slots=True)
class Bomb:
    path: str
    body: bytes
    statuses: tuple[int, ...]  # that are expected


@dataclass(frozen=True, slots=True)
class Blast:
    """The effects of bombs that were sent together. Times are `perf_counter`'s."""

    names: str
    statuses: list[int]
    expected: bool
    began_s: float
    ended_s: float
    peak_mb: float


def all_bombs(size: int, title: str = "") -> dict[str, Bomb]:
    """Results of schemas are kept: those with another title are compiled anew."""

    def formatted(schema: Mapping[str, object], *statuses: int) -> Bomb:
        body = {"model": "tiny-llada", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 32}
        return Bomb(CHAT, json.dumps({**body, "guided_json": {**schema, "title": title}}).encode(), statuses)

    bodies = {name: Bomb(path, build(size), (400,)) for name, (path, build) in BOMBS.items()}
    schemas = {f"a schema: {name}": formatted(schema, 400) for name, schema in ENDLESS.items()}
    served = {"a huge enum": formatted(HUGE_ENUM, 200), "an endless lexer": formatted(ENDLESS_LEXER, 200, 400)}
    return {**bodies, **schemas, **served}


def post(url: str, bomb: Bomb) -> int:
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=600)) as connection:
        connection.request("POST", bomb.path, bomb.body, {"content-type": "application/json"})
        return connection.getresponse().status


def drop(server: Server, bombs: Mapping[str, Bomb], together: int = 1) -> Iterator[Blast]:
    """Send so many at a time."""
    names, process = [*bombs], server.process.pid
    for start in range(0, len(names), together):
        some = [(name, bombs[name]) for name in names[start : start + together]]
        forget_peak(process)
        began_s = time.perf_counter()
        with ThreadPoolExecutor(together) as pool:
            statuses = list(pool.map(lambda item: post(server.url, item[1]), some))
        expected = all(status in bomb.statuses for status, (_, bomb) in zip(statuses, some, strict=True))
        label = " + ".join(name for name, _ in some)
        yield Blast(label, statuses, expected, began_s, time.perf_counter(), memory_mb(process, "VmHWM"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=FULL_BYTES)
    parser.add_argument("--only", default="", help="bombs with this in their names")
    parser.add_argument("--frontends", default="0")
    arguments = parser.parse_args()
    server = start_server("--max-body-bytes", str(arguments.bytes), "--frontends", arguments.frontends)
    try:
        before_mb = memory_mb(server.process.pid)
        with health_waits(server.url) as waits:
            blasts: list[Blast] = []
            for together in (1, TOGETHER):
                bombs = all_bombs(arguments.bytes, str(together))
                some = {name: bomb for name, bomb in bombs.items() if arguments.only in name}
                blasts += drop(server, some, together)
    finally:
        stop_server(server)
    for blast in blasts:
        meanwhile = [wait for began, wait in waits.items() if blast.began_s <= began + wait and began <= blast.ended_s]
        print(
            f"{blast.names[:60]:60} {'' if blast.expected else 'NOT '}expected: HTTP {blast.statuses},"
            f" {(blast.ended_s - blast.began_s) * 1000:.0f} ms, /health {max(meanwhile, default=0) * 1000:.1f} ms,"
            f" peak +{blast.peak_mb - before_mb:.0f} MB"
        )
    figures = {"health_ms": max(waits.values()) * 1000, "memory_mb": max(blast.peak_mb for blast in blasts) - before_mb}
    print(json.dumps({"bytes": arguments.bytes, "requests_of_health": len(waits), **figures}))
    return int(not all(blast.expected for blast in blasts))


if __name__ == "__main__":
    sys.exit(main())
