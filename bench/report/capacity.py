"""The tables of `bench.capacity`: what fleets answer within a deadline, and what the path to them carries.

`report.tables` writes them into docs/performance.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .page import markdown, number

Run = Mapping[str, Any]
LEAST = "least requests"  # the router of the tables of the path: nginx's least_conn
TEXT_BYTES = 4.5  # of a token of English text
# The columns of the path, with their decimals.
DIGITS = {"requests": 0, "streams": 0, "chunks": 0, "gbit_per_s": 3, "nginx": 2, "nginx_tls": 2, "front_ends": 1}
DIGITS |= {"engines": 1}


def read_capacity(results: Path) -> list[Run]:
    """Return the runs of `bench.capacity` that exist, by file name."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("capacity-*.json"))]


def capacity_section(runs: Sequence[Run], serving: Sequence[Run], proxy: Run | None) -> str:
    """Return the tables of the simulation, and those of the path if that was measured."""
    first = runs[0]
    prompt, answer = ("{} to {}".format(*first[name]) for name in ("prompt_tokens", "answer_tokens"))
    deadline_s, in_time = first["capacity"][0]["deadline_s"], f"{100 * first['in_time']:.0f} %"
    parts = [
        f"""\
## Capacity
**Simulated**, from the curves measured over HTTP above: replicas of one GPU each, with prompts of {prompt} tokens and
answers of {answer}, which arrive independently of each other (`python -m asynclane.bench.capacity
bench/results/serving-sdar-8b.json --json bench/results/capacity-sdar-8b.json`). A rate is the highest at which
{in_time} of the requests are in time. Tokens a forward are those of equal answers above, whatever the text.

What the simulation is worth: the measured loads, simulated as a closed loop. *With* means that the curve has the level,
*without* that it has only the others. Mixed answers were measured from the start, at which all streams send a prompt at
once, and are simulated without that.

{markdown(*_checks(runs))}

One replica, by the deadline:

{markdown(*_single(runs))}

Many replicas: requests a second of which {in_time} end within {deadline_s:g} s, and those of one replica.

{markdown(*_fleets(runs, deadline_s))}"""
    ]
    if proxy is not None:
        parts.append(_path_section(runs, serving, proxy, deadline_s))
    return "\n\n".join(parts)


def _checks(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    head = ["model", "load, streams", "curve", "tokens/s", "simulated", "ratio", "first text p99 ms", "simulated"]
    rows = [
        [
            run["model"],
            f"{check['load']}, {check['streams']}",
            "with" if check["of_the_curve"] else "without",
            number(check["tokens_per_s"], 1, 0),
            number(check["simulated_tokens_per_s"], 1, 0),
            number(check["simulated_tokens_per_s"] / check["tokens_per_s"], 1, 2),
            number(check["first_text_p99_ms"], 1, 0),
            number(check["simulated_first_text_p99_ms"], 1, 0),
        ]
        for run in runs
        for check in run["checks"]
    ]
    return head, rows


def _single(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    head = ["model", "in time", "requests/s", "tokens/s", "in flight", "first text p99 s", "last token p50 s", "p99 s"]
    rows = [
        [
            run["model"],
            f"{'last token' if row['of'] == 'last' else 'first text'} within {row['deadline_s']:g} s",
            *_rates(row),
        ]
        for run in runs
        for row in sorted(run["capacity"], key=lambda row: (row["of"], row["deadline_s"]))
        if row["replicas"] == 1
    ]
    return head, rows


def _rates(row: Run) -> list[str]:
    if row["requests_per_s"] is None:
        return ["none", *("-" for _ in range(5))]
    digits = {"requests_per_s": 1, "tokens_per_s": 0, "in_flight": 0}
    return [
        *(number(row[name], 1, places) for name, places in digits.items()),
        *(number(row[name], 1, 2) for name in ("first_p99_s", "last_p50_s", "last_p99_s")),
    ]


def _of(run: Run, count: int, router: str, deadline_s: float) -> float | None:
    for row in run["capacity"]:
        alike = (row["replicas"], row["of"], row["deadline_s"]) == (count, "last", deadline_s)
        if alike and (count == 1 or row["router"] == router):
            rate: float | None = row["requests_per_s"]
            return rate
    return None


def _counts(runs: Sequence[Run]) -> list[int]:
    return sorted({row["replicas"] for run in runs for row in run["capacity"]})


def _fleets(runs: Sequence[Run], deadline_s: float) -> tuple[list[str], list[list[str]]]:
    head = ["replicas", "router"] + [name for run in runs for name in (f"{run['model']} requests/s", "of one")]
    routers = list(dict.fromkeys(row["router"] for run in runs for row in run["capacity"]))
    rows = []
    for count in _counts(runs):
        for router in routers if count > 1 else ["-"]:
            row = [str(count), router]
            for run in runs:
                rate = _of(run, count, router, deadline_s)
                row += [number(rate, 1, 1 if count < 64 else 0), number(rate, 1 / count, 1)]
            rows.append(row)
    return head, rows


def _path_section(runs: Sequence[Run], serving: Sequence[Run], proxy: Run, deadline_s: float) -> str:
    head = ["model", "replicas", "requests/s", "streams", "chunks/s", "Gbit/s", "nginx: cores", "with TLS"]
    head += ["front ends: cores", "engines: cores"]
    rows, full = [], []
    for run in runs:
        measured = next((one for one in serving if one["shape"] == run["model"]), None)
        rates = {count: _of(run, count, LEAST, deadline_s) for count in _counts(runs)}
        paths = {
            count: _path(run, measured, proxy, count, rate)
            for count, rate in rates.items()
            if rate is not None and measured is not None
        }
        for count, path in paths.items():
            rows.append([run["model"], str(count), *(number(path[name], 1, digits) for name, digits in DIGITS.items())])
        if paths:
            most = max(paths)
            core, gbit = (int(most / paths[most][name]) for name in ("nginx_tls", "gbit_per_s"))
            full.append(f"{core} replicas of {run['model']} ({10 * gbit:,} for 10 Gbit/s)")
    chunk, day = proxy["chunk"], proxy["date"][:10]
    bare = f"{chunk['event_bytes_without_text']:.0f}"
    event, answer = ([nginx_us(proxy, kind, tls) for tls in (False, True)] for kind in ("stream", "whole"))
    return f"""\
What the path to them carries at that rate, with the router *{LEAST}*. **Measured:** an event of a streamed chat takes
{bare} bytes and its text, all else of an answer {chunk["other_bytes"]} (embedded server); {proxy["proxy"]} takes
{event[0]:.0f} us of a core for an event and {answer[0]:.0f} for a request of 3.6 kB, with TLS {event[1]:.0f} and
{answer[1]:.0f} (`python -m asynclane.bench.capacity.proxy --json bench/results/proxy.json`, {day}, one
worker on a virtual CPU, connections kept); chunks of an answer and the processor time of front ends and engine are
those of the most streams measured. **Computed** from these: the table, with {TEXT_BYTES} bytes of text a token, without
headers of packets.

One worker of nginx with TLS is full at {"; ".join(full)}.

{markdown(head, rows)}"""


def nginx_us(proxy: Run, answers_are: str, tls: bool) -> float:
    """Return the microseconds of nginx for an event of a stream, or for a whole answer, in front of the stand-in."""
    (run,) = (
        one
        for one in proxy["runs"]
        if (one["upstream"], one["answers_are"], one["tls"]) == ("stand-in", answers_are, tls)
    )
    return float(1e6 * run["processor_s"] / (run["events"] if answers_are == "stream" else run["answers"]))


def _path(run: Run, measured: Run, proxy: Run, count: int, rate: float) -> dict[str, float]:
    """Return requests and chunks a second, streams at a time, bytes, and cores that are busy."""
    most = max((found for found in measured["loads"] if found["load"] == "equal"), key=lambda found: found["streams"])
    tokens_per_s = rate * sum(run["answer_tokens"]) / 2
    chunks_per_s = tokens_per_s * most["chunks"] / (most["tokens_per_s"] * most["wall_s"])
    out = chunks_per_s * proxy["chunk"]["event_bytes_without_text"] + tokens_per_s * TEXT_BYTES
    in_flight = next(
        row["in_flight"] for row in run["capacity"] if row["replicas"] == count and row["requests_per_s"] == rate
    )
    engine, *front_ends = most["server_cpu_shares"]
    plain, tls = (
        (chunks_per_s * nginx_us(proxy, "stream", one) + rate * nginx_us(proxy, "whole", one)) / 1e6
        for one in (False, True)
    )
    return {
        "requests": rate,
        "streams": in_flight * count,
        "chunks": chunks_per_s,
        "gbit_per_s": 8e-9 * (out + rate * proxy["chunk"]["other_bytes"]),
        "nginx": plain,
        "nginx_tls": tls,
        "front_ends": chunks_per_s * sum(front_ends) * most["wall_s"] / most["chunks"],
        "engines": engine * count,
    }
