"""Simulates how many requests a second 1, 8, 64 and 1,000 replicas answer within a deadline, from measured curves.

Usage: python -m asynclane.bench.capacity bench/results/serving-sdar-8b.json [--deadlines 5,2.5,10] [--json FILE]
Requests of mixed lengths arrive independently of each other. A rate is the highest at which 99 % of the requests are in
time. All deadlines are simulated for one replica, the first also for many, each router in turn. The program first
simulates the loads that were measured, so that you see what the simulation is worth. It needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from ..load.flags import COUNTS
from ..load.output import above_zero, check_outputs, finish, json_line, list_of, positive, program, table
from ..serving.run import MIXED_ANSWER, MIXED_PROMPT
from .curve import Replica, point, read, replica
from .fleet import KINDS, Fleet, Lengths, Request, percentile, poisson

MIXED = Lengths(MIXED_PROMPT, MIXED_ANSWER)
EQUAL = Lengths((200, 200), (256, 256))
IN_TIME = 0.99
EXACT = 1.02  # between a rate that is in time and the next that is not
GROWTH = 1.5
NEAR = EXACT  # the growth of a search that begins at the rate of fewer replicas
WARM_UP = 4  # deadlines: a rate that is too high shows late
LEAST_RATE = 1e-3
CHECK_ROUNDS = 9  # answers of each stream in a simulated closed loop


@dataclass(frozen=True, slots=True)
class Goal:
    """A deadline for the `first` text or the `last` token of a request."""

    of: str
    seconds: float

    def time_s(self, request: Request) -> float:
        return (request.first_s if self.of == "first" else request.end_s) - request.arrived_s


@dataclass(frozen=True, slots=True)
class Size:
    """The length of a simulation: requests counted, at least in all and for each replica, after some that are not."""

    requests: int
    per_replica: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The times of the requests that were counted, and how many a replica has at a time, in the mean."""

    requests: int
    first_p99_s: float
    last_p50_s: float
    last_p99_s: float
    in_flight: float


def attempt(
    one: Replica, count: int, kind: str, rate_per_s: float, goal: Goal, size: Size, seed: int
) -> Outcome | None:
    """Simulate one rate. Return None as soon as too many requests are late."""
    before = int(rate_per_s * WARM_UP * goal.seconds)
    counted = max(size.requests, size.per_replica * count)
    requests = poisson(rate_per_s, before + counted, MIXED, seed)
    late, allowed = 0, (1 - IN_TIME) * counted
    begin_s = requests[before].arrived_s

    def note_end(request: Request) -> None:
        nonlocal late
        late += request.arrived_s >= begin_s and goal.time_s(request) > goal.seconds

    fleet = Fleet(one, count, kind, seed, note_end)
    for request in requests:
        fleet.arrive(request)
        if late > allowed:
            return None
    fleet.finish()
    if late > allowed:
        return None
    ended = requests[before:]
    last = [request.end_s - request.arrived_s for request in ended]
    first = [request.first_s - request.arrived_s for request in ended]
    return Outcome(
        requests=counted,
        first_p99_s=percentile(first, IN_TIME),
        last_p50_s=percentile(last, 0.5),
        last_p99_s=percentile(last, IN_TIME),
        in_flight=rate_per_s * fmean(last) / count,  # Little's law
    )


def highest(
    low: float, measure: Callable[[float], Outcome | None], growth: float = GROWTH
) -> tuple[float, Outcome] | None:
    """Return the highest rate that `measure` accepts, and its result, from a guess on. None if none is."""
    found = measure(low)
    high = low if found is None else None
    while found is None:
        low, high = low / growth, low
        if low < LEAST_RATE:
            return None
        found = measure(low)
    if high is None:
        high = low * growth
        while (more := measure(high)) is not None:
            low, high, found = high, high * growth, more
    while high / low > EXACT + 1e-9:
        middle = (low * high) ** 0.5
        more = measure(middle)
        if more is None:
            high = middle
        else:
            low, found = middle, more
    return low, found


def capacity(one: Replica, count: int, kind: str, goal: Goal, size: Size, guess: float, seed: int) -> dict[str, Any]:
    """Return the figures of a fleet at its highest rate within a deadline; none, if it misses it at any rate."""
    head = {"replicas": count, "router": kind, "of": goal.of, "deadline_s": goal.seconds}
    found = highest(
        guess, lambda rate: attempt(one, count, kind, rate, goal, size, seed), GROWTH if count == 1 else NEAR
    )
    if found is None:
        return {**head, "requests_per_s": None}
    rate, outcome = found
    tokens = sum(MIXED.answer) / 2
    figures = {name: round(value, 4) for name, value in asdict(outcome).items()}
    return {**head, "requests_per_s": round(rate, 2), "tokens_per_s": round(rate * tokens, 1), **figures}


def closed_loop(one: Replica, streams: int, lengths: Lengths, seed: int) -> tuple[float, float]:
    """Simulate streams that each send a request when their answer has ended. Return the tokens a second and the 99th
    percentile of the time to the first text, in the middle third of the time."""
    drawn = iter(poisson(1.0, streams * (CHECK_ROUNDS + 1), lengths, seed))
    ended: list[Request] = []

    def again(request: Request) -> None:
        ended.append(request)
        if (following := next(drawn, None)) is not None:
            fleet.arrive(replace(following, arrived_s=fleet.now_s))

    fleet = Fleet(one, 1, "random", on_end=again)
    for _ in range(streams):
        fleet.arrive(replace(next(drawn), arrived_s=0.0))
    while fleet.running == streams:
        fleet.advance_round()
    begin_s, until_s = fleet.now_s / 3, 2 * fleet.now_s / 3
    fleet.finish()
    tokens = sum(
        r.answer * max(0.0, min(r.end_s, until_s) - max(r.arrived_s, begin_s)) / (r.end_s - r.arrived_s) for r in ended
    )
    first = [r.first_s - r.arrived_s for r in ended if begin_s <= r.end_s <= until_s]
    return tokens / (until_s - begin_s), percentile(first, IN_TIME)


def checks(run: Mapping[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    """Simulate each load that was measured, with the curve of the others where they lie on both sides of it."""
    equal = sorted(found["streams"] for found in run["loads"] if found["load"] == "equal")
    for found in run["loads"]:
        mixed = found["load"] == "mixed"
        apart = mixed or found["streams"] not in (equal[0], equal[-1])
        one = replica(run, without=found if apart else None)
        if mixed:
            forward = {name: found[name] for name in ("tokens_per_forward", "positions_per_forward")}
            one = replace(one, slots=max(one.slots, found["streams"]), **forward)
        tokens_per_s, first_s = closed_loop(one, found["streams"], MIXED if mixed else EQUAL, seed)
        yield {
            "load": found["load"],
            "streams": found["streams"],
            "of_the_curve": not apart,
            "tokens_per_s": found["tokens_per_s"],
            "simulated_tokens_per_s": round(tokens_per_s, 1),
            "first_text_p99_ms": found["first_text_ms"]["p99"],
            "simulated_first_text_p99_ms": round(1e3 * first_s, 3),
        }


def describe(run: Mapping[str, Any], one: Replica, options: argparse.Namespace) -> dict[str, Any]:
    """Return what a simulation depends on."""
    return {
        "benchmark": "capacity",
        "model": one.name,
        "card": run["card"],
        "measured": run["date"],
        "torch": run["versions"]["torch"],
        "seed": options.seed,
        "counted": {"requests": options.requests, "per_replica": options.per_replica, "warm_up_deadlines": WARM_UP},
        "prompt_tokens": list(MIXED.prompt),
        "answer_tokens": list(MIXED.answer),
        "in_time": IN_TIME,
        "levels": sorted(found["streams"] for found in run["loads"] if found["load"] == "equal"),
        "curve": [
            [round(positions, 1), round(1e3 * seconds, 3)]
            for positions, seconds in sorted(point(found) for found in run["loads"] if found["load"] == "equal")
        ],
        "slots": one.slots,
        "chunk": one.chunk,
        "tokens_per_forward": one.tokens_per_forward,
        "positions_per_forward": one.positions_per_forward,
        "first_forwards": one.first_forwards,
    }


def rows_of(path: Path | None, head: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows that a file has of the same simulation; none without a file. Raises `ValueError` for others."""
    if path is None or not path.is_file():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))
    if any(found.get(name) != value for name, value in head.items()):
        raise ValueError(f"{path.name} is of another simulation: write to another file, or leave out --resume")
    rows: list[dict[str, Any]] = found["capacity"]
    return rows


def simulate(
    one: Replica, rows: list[dict[str, Any]], options: argparse.Namespace, keep: Callable[[], None]
) -> list[dict[str, Any]]:
    """Return a row for each goal and fleet, in their order. Rows that are there are not simulated again; a new one is
    added to `rows`, and `keep` called."""
    size = Size(options.requests, options.per_replica)
    goals = [Goal("last", seconds) for seconds in options.deadlines]
    goals += [Goal("first", seconds) for seconds in options.first_text]
    alone_s = one.forwards(round(fmean(MIXED.answer))) * one.round_s(one.positions_per_forward)
    wanted: list[dict[str, Any]] = []

    def rate(count: int, kind: str, goal: Goal, guess: float) -> float:
        """Return the rate for each replica, or the guess where there is none."""
        key = {"replicas": count, "router": kind, "of": goal.of, "deadline_s": goal.seconds}
        row = next((row for row in rows if key.items() <= row.items()), None)
        if row is None:
            row = capacity(one, count, kind, goal, size, guess, options.seed)
            rows.append(row)
            keep()
            _say(f"  {count} replicas, {kind}, {goal.of} within {goal.seconds:g} s: {row['requests_per_s']} requests/s")
        wanted.append(row)
        return float(row["requests_per_s"] or guess) / count

    least, *_ = [rate(1, KINDS[0], goal, 1 / alone_s) for goal in goals]
    known = dict.fromkeys(options.routers, least)
    for count in sorted(set(options.replicas) - {1}):
        for kind in options.routers:
            known[kind] = rate(count, kind, goals[0], known[kind] * count)
    return wanted


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser()
    options = parser.parse_args(argv)
    check_outputs(parser, None, options.json)
    try:
        run = read(options.curve)
        one = replica(run)
        head = describe(run, one, options)
        rows = rows_of(options.json if options.resume else None, head)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    checked = list(checks(run, options.seed))

    def whole(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {**head, "checks": checked, "capacity": rows}

    def keep() -> None:
        if options.json:
            options.json.write_text(json_line(whole(rows)) + "\n", encoding="utf-8")

    found = whole(simulate(one, rows, options, keep))
    _print(found)
    finish(found, options.json)
    return 0


def _print(found: Mapping[str, Any]) -> None:
    print(f"{found['model']}, measured at {', '.join(map(str, found['levels']))} streams")
    head = ["measured load", "tokens/s", "simulated", "ratio", "first text p99 ms", "simulated"]
    rows = [
        [
            f"{c['load']}, {c['streams']}",
            f"{c['tokens_per_s']:.0f}",
            f"{c['simulated_tokens_per_s']:.0f}",
            f"{c['simulated_tokens_per_s'] / c['tokens_per_s']:.2f}",
            f"{c['first_text_p99_ms']:.0f}",
            f"{c['simulated_first_text_p99_ms']:.0f}",
        ]
        for c in found["checks"]
    ]
    print(table(head, rows))
    head = [
        "replicas, router",
        "99 % within",
        "requests/s",
        "tokens/s",
        "in flight",
        "first text p99 s",
        "end p50 s",
        "p99 s",
    ]
    print(table(head, [_row(row) for row in found["capacity"]]), end="\n\n")


def _row(row: Mapping[str, Any]) -> list[str]:
    head = [f"{row['replicas']}, {row['router']}", f"{row['deadline_s']:g} s, {row['of']}"]
    if row["requests_per_s"] is None:
        return [*head, "none", *("-" for _ in range(5))]
    return [
        *head,
        f"{row['requests_per_s']:.1f}",
        f"{row['tokens_per_s']:.0f}",
        f"{row['in_flight']:.1f}",
        *(f"{row[name]:.2f}" for name in ("first_p99_s", "last_p50_s", "last_p99_s")),
    ]


def build_parser() -> argparse.ArgumentParser:
    parser = program("capacity", __doc__)
    parser.add_argument("curve", type=Path, metavar="FILE", help="a result of bench.serving")
    parser.add_argument("--replicas", type=COUNTS, default=(1, 8, 64, 1000), metavar="N,N", help="default: 1,8,64,1000")
    parser.add_argument("--routers", type=list_of(_router), default=KINDS, metavar="R,R", help="default: all")
    parser.add_argument(
        "--deadlines", type=list_of(above_zero), default=(5.0, 2.5, 10.0), metavar="S,S", help="of the last token"
    )
    parser.add_argument(
        "--first-text", type=list_of(above_zero), default=(1.0, 0.5), metavar="S,S", help="deadlines of the first text"
    )
    parser.add_argument("--requests", type=positive, default=20_000, help="counted at least (default: %(default)s)")
    parser.add_argument(
        "--per-replica", type=positive, default=150, help="counted at least for each replica (default: %(default)s)"
    )
    parser.add_argument("--resume", action="store_true", help="keep what the file of --json has, and simulate the rest")
    parser.add_argument("--seed", type=int, default=777, help="default: %(default)s")
    return parser


def _router(text: str) -> str:
    if text not in KINDS:
        raise argparse.ArgumentTypeError(f"must be of {', '.join(KINDS)}, not {text!r}")
    return text


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
