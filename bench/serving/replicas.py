"""Compares replicas under one address with plain servers side by side: token rates, and what routing adds to the first text.

Usage: python -m asynclane.bench.serving.replicas --url http://127.0.0.1:8000 --beside http://127.0.0.1:8001 http://127.0.0.1:8002
All of them run already, each with the same model and as much of the machine. Windows of load alternate between both
sides, and so do the single requests whose first text is timed, so that other work on the machine meets both alike. On
both sides the streams come from as many client processes as there are plain servers.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from ..load.output import above_zero, finish, positive, program, table
from .load import LANES, Load
from .run import ClientProcess
from .server import Server, connect, machine
from .streams import Job
from .tally import Answer, gaps, spread_ms, within

SIDES = ("replicas", "plain")


async def window(servers: Sequence[Server], load: Load, clients: int, warm_s: float, seconds: float) -> dict[str, Any]:
    """Return the figures of a load that the client processes divide among themselves, after `warm_s`."""
    jobs = [
        Job(servers[n % len(servers)].host, servers[n % len(servers)].port, load, tuple(range(n, load.streams, clients)), 120.0)
        for n in range(clients)
    ]
    processes = await asyncio.gather(*map(ClientProcess.start, jobs))
    rounds = [asyncio.create_task(_result(process)) for process in processes]
    try:
        for process in processes:
            process.send("go")
        await asyncio.sleep(warm_s)
        from_s = time.monotonic()
        await asyncio.sleep(seconds)
        until_s = time.monotonic()
        for process in processes:
            process.send("stop")
        results = await asyncio.gather(*rounds)
    finally:
        for process in processes:
            process.kill()
    answers: list[Answer] = [answer for result in results for answer in result["answers"]]
    good = [answer for answer in answers if answer["failure"] is None]
    tokens = sum(answer["tokens"] * within(answer, from_s, until_s) for answer in good)
    ended = [a for a in good if from_s <= a["end_s"] <= until_s]
    return {
        "tokens_per_s": round(tokens / (until_s - from_s), 1),
        "answers": len(ended),
        "failed": len(answers) - len(good),
        "first_text_ms": spread_ms([a["times"][0] - a["start_s"] for a in ended if a["times"]]),
        "gap_ms": spread_ms(gaps(good, from_s, until_s)),
        "client_cpu_share": max(result["cpu_share"] for result in results),
    }


async def _result(process: ClientProcess) -> dict[str, Any]:
    return await process.result()


async def first_texts(server: Server, load: Load, count: int) -> list[float]:
    """Return the seconds to the first text of single requests, one after another."""
    from .streams import Connection

    connection, found = Connection(server.host, server.port), []
    for number in range(count):
        import json

        body = json.dumps(load.body(0, number)).encode()
        begun = time.monotonic()
        reply = await connection.post(body, 120.0)
        if reply.failure is not None or not reply.times:
            raise ValueError(f"a single request failed: {reply.failure}")
        found.append(reply.times[0] - begun)
    connection.close()
    return found


async def compare(options: argparse.Namespace) -> dict[str, Any]:
    sides = {"replicas": [connect(options.url)], "plain": [connect(url) for url in options.beside]}
    model = sides["plain"][0].model
    load = Load("equal", options.streams, (options.prompt_tokens,) * 2, (options.max_tokens,) * 2, LANES, model)
    single = Load("single", 1, (options.prompt_tokens,) * 2, (32, 32), LANES, model)
    rates: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    firsts: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(options.rounds):
        for side in SIDES if number % 2 else SIDES[::-1]:
            for server in sides[side]:
                firsts[side] += (await first_texts(server, single, options.requests))[2:]
            rates[side].append(await window(sides[side], load, len(options.beside), options.warm_s, options.seconds))
            print(f"{side}: {rates[side][-1]}", file=sys.stderr, flush=True)
    shares = [a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(rates["replicas"], rates["plain"], strict=True)]
    first = {side: spread_ms(found) for side, found in firsts.items()}
    return {
        "benchmark": "replicas",
        **machine(),
        "streams": options.streams,
        "rates": rates,
        "shares": [round(share, 3) for share in shares],
        "share": round(median(shares), 3),
        "first_text_ms": first,
        "routing_ms": round(first["replicas"]["p50"] - first["plain"]["p50"], 2),
    }


def main() -> int:
    parser = program("serving.replicas", __doc__)
    parser.add_argument("--url", required=True, help="of the replicas: http://HOST:PORT")
    parser.add_argument("--beside", required=True, nargs="+", metavar="URL", help="of the plain servers")
    parser.add_argument("--streams", type=positive, default=16, help="at once, over all (default: %(default)s)")
    parser.add_argument("--rounds", type=positive, default=5, help="windows of each side (default: %(default)s)")
    parser.add_argument("--warm-s", type=above_zero, default=3.0, help="before each window (default: %(default)g)")
    parser.add_argument("--seconds", type=above_zero, default=10.0, help="of a window (default: %(default)g)")
    parser.add_argument("--requests", type=positive, default=20, help="single ones for each window (default: %(default)s)")
    parser.add_argument("--prompt-tokens", type=positive, default=200, help="default: %(default)s")
    parser.add_argument("--max-tokens", type=positive, default=256, help="default: %(default)s")
    options = parser.parse_args()
    try:
        found = asyncio.run(compare(options))
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    rows = [[side, *(f"{one['tokens_per_s']:.0f}" for one in found["rates"][side])] for side in SIDES]
    print(table(["tokens/s", *(str(n + 1) for n in range(options.rounds))], rows))
    print(f"share of the plain servers: {found['share']:.3f}; routing adds {found['routing_ms']:.2f} ms to the first text (p50)")
    finish(found, None)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
