"""Compares replicas under one address with plain servers side by side: token rates, and the time to the first text.

Usage: python -m asynclane.bench.serving.replicas --url http://HOST:PORT --beside http://HOST:PORT http://HOST:PORT
All of them run already, with the same model, and each plain server has as much of the machine as a replica. Windows of
load on one side and on the other alternate, and so do the single requests whose first text is timed, so other work on
the machine meets both alike. With the processes of both sides, the seconds of a processor for 1,000 tokens are reported
as well, which other work changes little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..load.output import above_zero, finish, positive, program, table
from .load import LANES, Load
from .run import ClientProcess
from .server import Server, connect, machine, processor_seconds
from .streams import Connection, Job
from .tally import Answer, spread_ms, within

TIMEOUT_S = 120.0
UNCOUNTED = 2  # single requests before those that are timed


@dataclass(frozen=True, slots=True)
class Side:
    """One side: its addresses, and the processes whose time is counted with that of their children."""

    name: str
    servers: Sequence[Server]
    pids: Sequence[int]

    def processor_s(self) -> float:
        return sum(sum(processor_seconds(pid).values()) for pid in self.pids)


async def window(side: Side, load: Load, clients: int, warm_s: float, seconds: float) -> dict[str, Any]:
    """Return the figures of a load that so many client processes share, in the `seconds` after `warm_s`."""
    servers = [side.servers[number % len(side.servers)] for number in range(clients)]
    jobs = [
        Job(server.host, server.port, load, tuple(range(number, load.streams, clients)), TIMEOUT_S)
        for number, server in enumerate(servers)
    ]
    processes = await asyncio.gather(*map(ClientProcess.start, jobs))
    results = [asyncio.create_task(process.result()) for process in processes]
    try:
        for process in processes:
            process.send("go")
        await asyncio.sleep(warm_s)
        from_s, before = time.monotonic(), side.processor_s()
        await asyncio.sleep(seconds)
        until_s, used_s = time.monotonic(), side.processor_s() - before
        for process in processes:
            process.send("stop")
        found = await asyncio.gather(*results)
    finally:
        for process in processes:
            process.kill()
    answers: list[Answer] = [answer for result in found for answer in result["answers"]]
    good = [answer for answer in answers if answer["failure"] is None]
    tokens = sum(answer["tokens"] * within(answer, from_s, until_s) for answer in good)
    if not tokens:
        raise ValueError(f"{side.name}: no answer ended: give it more seconds")
    return {
        "tokens_per_s": round(tokens / (until_s - from_s), 1),
        "processor_s_per_1000_tokens": round(1000 * used_s / tokens, 3) if side.pids else None,
        "failed": len(answers) - len(good),
        "chunks_per_s": round(
            sum(from_s <= at_s <= until_s for answer in good for at_s in answer["times"]) / (until_s - from_s), 1
        ),
        "client_cpu_share": round(max(result["cpu_share"] for result in found), 3),
    }


async def first_texts(server: Server, load: Load, count: int) -> list[float]:
    """Return the seconds to the first text of single requests, one after another. Raises `ValueError`."""
    connection, found = Connection(server.host, server.port), []
    for number in range(count + UNCOUNTED):
        begun = time.monotonic()
        reply = await connection.post(json.dumps(load.body(0, number)).encode(), TIMEOUT_S)
        if reply.failure is not None or not reply.times:
            raise ValueError(f"a single request was not answered: {reply.failure}")
        found.append(reply.times[0] - begun)
    connection.close()
    return found[UNCOUNTED:]


async def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Raises `ValueError`."""
    sides = (
        Side("plain", [connect(url) for url in options.beside], options.beside_pids),
        Side("replicas", [connect(options.url)], options.pids),
    )
    model = sides[0].servers[0].model
    prompt, answer = (options.prompt_tokens,) * 2, (options.max_tokens,) * 2
    load = Load("equal", options.streams, prompt, answer, LANES, model)
    single = Load("single", 1, prompt, answer, LANES, model)
    windows: dict[str, list[dict[str, Any]]] = {side.name: [] for side in sides}
    firsts: dict[str, list[float]] = {side.name: [] for side in sides}
    for number in range(options.rounds):
        for side in sides[:: 1 if number % 2 else -1]:
            firsts[side.name] += await first_texts(side.servers[0], single, options.requests)
            found = await window(side, load, len(sides[0].servers), options.warm_s, options.seconds)
            windows[side.name].append(found)
            print(f"{side.name}: {found}", file=sys.stderr, flush=True)
    first = {name: spread_ms(found) for name, found in firsts.items()}
    medians = {name: median(firsts[name]) for name in firsts}
    return {
        "benchmark": "replicas",
        **machine(),
        "streams": options.streams,
        "windows": windows,
        "share": _share(windows, "tokens_per_s"),
        "share_by_processor": 1 / _share(windows, "processor_s_per_1000_tokens") if options.pids else None,
        "first_text_ms": first,
        "routing_ms": round(1e3 * (medians["replicas"] - medians["plain"]), 2),
    }


def _share(windows: dict[str, list[dict[str, Any]]], figure: str) -> float:
    """The median over rounds of a figure of the replicas over that of the plain servers."""
    pairs = zip(windows["replicas"], windows["plain"], strict=True)
    return round(float(median(ours[figure] / theirs[figure] for ours, theirs in pairs)), 3)


def main() -> int:
    parser = program("serving.replicas", __doc__)
    parser.add_argument("--url", required=True, help="of the replicas")
    parser.add_argument("--beside", required=True, nargs="+", metavar="URL", help="of the plain servers")
    parser.add_argument("--pids", type=int, nargs="+", default=[], metavar="PID", help="of the replicas' side")
    parser.add_argument("--beside-pids", type=int, nargs="+", default=[], metavar="PID", help="of the plain servers")
    parser.add_argument("--streams", type=positive, default=8, help="at once, over all (default: %(default)s)")
    parser.add_argument("--rounds", type=positive, default=5, help="windows of each side (default: %(default)s)")
    parser.add_argument("--warm-s", type=above_zero, default=3.0, help="before each window (default: %(default)g)")
    parser.add_argument("--seconds", type=above_zero, default=10.0, help="of a window (default: %(default)g)")
    parser.add_argument("--requests", type=positive, default=20, help="single ones per window (default: %(default)s)")
    parser.add_argument("--prompt-tokens", type=positive, default=32, help="default: %(default)s")
    parser.add_argument("--max-tokens", type=positive, default=64, help="default: %(default)s")
    options = parser.parse_args()
    try:
        found = asyncio.run(compare(options))
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    rows = [[name, *(f"{one['tokens_per_s']:.0f}" for one in rates)] for name, rates in found["windows"].items()]
    print(table(["tokens/s", *(str(number + 1) for number in range(options.rounds))], rows))
    print(f"share of the plain servers' tokens/s: {found['share']:.3f}")
    if found["share_by_processor"] is not None:
        print(f"share by seconds of a processor: {found['share_by_processor']:.3f}")
    print(f"routing adds {found['routing_ms']:.2f} ms to the first text (p50)")
    finish(found, None)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
