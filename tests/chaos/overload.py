"""Loads a server with more than it can do, and prints what it still does: `python -m tests.chaos.overload`.

The load generator is that of `asynclane bench`. It takes seconds to open 600 connections, so the time of a refusal is
taken from the server's log, where it begins with a request's headers. A third process requests `/health`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections import Counter
from dataclasses import dataclass

from asynclane.bench.load.flags import add_load_flags
from asynclane.bench.load.loops import Sample, connected, run_level
from asynclane.bench.load.plan import read_plan

from ..support.servers import Server, start_server, stop_server, wait_for
from .measure import EVERY_S, health_waits, percentile

HANG_S = 120
REFUSED = "429 overloaded"


@dataclass(frozen=True, slots=True)
class Load:
    """The results of a load. Times are in seconds."""

    answered: int
    failures: Counter[str]
    answers_per_s: float
    refusals_p99_s: float | None
    health_p99_s: float


def load(server: Server, *flags: str, every_s: float = EVERY_S) -> Load:
    """`flags` are those of `asynclane bench`, for one load. `/health` is requested `every_s`."""
    parser, logged = argparse.ArgumentParser(), len(server.log)
    add_load_flags(parser, server.url)
    plan = read_plan(parser.parse_args(["--timeout", str(HANG_S), "--max-tokens", "64", *flags]), None)

    async def run() -> list[Sample]:
        async with connected(plan.target) as prober:
            return await run_level(prober, plan, plan.levels[0], lambda: None)

    with health_waits(server.url, every_s) as waits:
        samples = asyncio.run(run())
    answered = [sample for sample in samples if sample.failure is None]
    seconds = max(sample.end_s for sample in answered) - min(sample.due_s for sample in answered)
    failures = Counter(sample.failure.kind for sample in samples if sample.failure is not None)

    def refusals() -> list[float]:
        return [float(time_s) for time_s in re.findall(r" status=429 .*total_s=(\S+)", "".join(server.log[logged:]))]

    wait_for(lambda: len(refusals()) >= failures[REFUSED])
    refusals_s = percentile(refusals(), 0.99) if failures[REFUSED] else None
    return Load(len(answered), failures, len(answered) / seconds, refusals_s, percentile([*waits.values()], 0.99))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=40, help="of twice the load that the server can do")
    parser.add_argument("--frontends", default="0")
    arguments = parser.parse_args()
    seconds = arguments.seconds
    server = start_server("--max-queue", "64", "--frontends", arguments.frontends)
    try:
        many = load(server, "--concurrency", "600", "--requests", "600")
        print("600 at once:", many, flush=True)
        peak = load(server, "--concurrency", "64", "--requests", "384")
        print("64 at once:", peak, flush=True)
        rate = f"{2 * peak.answers_per_s:.3f}"
        twice = load(server, "--rate", rate, "--duration", str(seconds), "--requests", "100000")
        print(f"{rate} a second:", twice, flush=True)
    finally:
        stop_server(server)
    print(json.dumps({"goodput_share": round(twice.answers_per_s / peak.answers_per_s, 3)}))
    return int(any(one.failures.keys() - {REFUSED} for one in (many, peak, twice)))


if __name__ == "__main__":
    sys.exit(main())
