"""The tables of `bench.serving`, beside the steps that `steps.offline` measured for the same positions.

Usage: python -m asynclane.bench.report.serving [--results DIR] [--offline DIR]
`report.tables` writes the same tables into docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from . import RESULTS
from .page import markdown, number, where

Run = Mapping[str, Any]
PLOT = "serving.png"


def read_serving(results: Path, offline: Path | None = None) -> list[dict[str, Any]]:
    """Return the runs of `serving` that exist, by file name. Each has the steps of its shape by `steps.offline`, which
    are in the same folder, or in `offline`."""
    runs = []
    for path in sorted(results.glob("serving-*.json")):
        run: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        steps = (offline or results) / f"offline-{run['shape']}.json"
        run["offline"] = json.loads(steps.read_text(encoding="utf-8"))["steps"] if steps.is_file() else []
        runs.append(run)
    return runs


def step_ms(steps: Sequence[Mapping[str, Any]], positions: float) -> float | None:
    """Return the time of a step of so many positions, on straight lines between those that were measured in rows of
    equal length. Fewer positions take as long as the fewest. None past the most."""
    known = [(step["tokens"], step["ours_ms"]) for step in steps if step["load"].isdigit()]
    if not known or positions > known[-1][0]:
        return None
    if positions <= known[0][0]:
        return float(known[0][1])
    (low, low_ms), (high, high_ms) = next(pair for pair in pairwise(known) if positions <= pair[1][0])
    return float(low_ms + (high_ms - low_ms) * (positions - low) / (high - low))


def offline_bound(run: Run, found: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the time of a step with the denoised positions of all streams, and the tokens a second of such steps one
    after another, by `steps.offline`: without prompts and without a host."""
    one_ms = step_ms(run["offline"], found["positions_per_forward"] * found["streams"])
    return one_ms, one_ms and 1e3 * found["tokens_per_forward"] * found["streams"] / one_ms


def serving_section(runs: Sequence[Run]) -> str:
    """Return two tables for each run: rates beside bounds, and times that a client waits."""
    return "\n\n".join(f"{_heading(run)}\n\n{_rates(run)}\n\n{_waits(run)}" for run in runs)


def _heading(run: Run) -> str:
    quotas = {found["load"]: found["quota"] for found in run["loads"]}
    texts = [
        f"{name}: `{quota['decoder']}`, blocks of {quota['block']} in {quota['forwards']} forwards"
        for name, quota in quotas.items()
    ]
    return f"""\
**{run["model"]}** on one {where(run)}; {"; ".join(texts)}.
```
python -m asynclane.bench.serving {run["arguments"]}
```"""


def _rates(run: Run) -> str:
    head = ["load, streams", "tokens/s", "bound", "share", "tokens a forward", "forward ms", "device ms"]
    head += ["device busy", "positions a forward", "such a step alone ms", "its tokens/s", "share"]
    rows = []
    for found in run["loads"]:
        one_ms, bound = offline_bound(run, found) if found["load"] == "equal" else (None, None)
        rows.append(
            [
                _name(found),
                number(found["tokens_per_s"], 1, 0),
                number(found["bound_tokens_per_s"], 1, 0),
                number(found["share_of_bound"], 1, 2),
                number(found["tokens_per_forward"], 1, 2),
                number(found["forward_ms"], 1, 2),
                number(found["device_forward_ms"], 1, 2),
                number(found["device_busy"], 1, 2),
                number(found["positions_per_forward"], 1, 1),
                number(one_ms, 1, 2),
                number(bound, 1, 0),
                number(bound and found["tokens_per_s"] / bound, 1, 2),
            ]
        )
    return markdown(head, rows)


def _waits(run: Run) -> str:
    head = ["load, streams", "first text ms p50", "p99", "gap ms p50", "p90", "p99", "p99.9", "max"]
    head += ["failed", "graphs captured meanwhile", "busiest client", "server's processes"]
    return markdown(head, [_wait(found) for found in run["loads"]])


def _wait(found: Mapping[str, Any]) -> list[str]:
    first, gap, (before, after) = found["first_text_ms"] or {}, found["gap_ms"] or {}, found["graph_captures"]
    return [
        _name(found),
        *(number(first.get(name), 1, 0) for name in ("p50", "p99")),
        *(number(gap.get(name), 1, 1) for name in ("p50", "p90", "p99", "p99.9", "max")),
        str(sum(found["failures"].values())),
        "-" if before is None or after is None else str(after - before),
        f"{100 * found['client_cpu_share']:.0f} %",
        " + ".join(f"{100 * share:.0f}" for share in found["server_cpu_shares"]) + " %",
    ]


def _name(found: Mapping[str, Any]) -> str:
    return f"{found['load']}, {found['streams']}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m asynclane.bench.report.serving",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="default: %(default)s")
    parser.add_argument("--offline", type=Path, metavar="DIR", help="folder of offline-*.json (default: the same)")
    options = parser.parse_args(argv)
    runs = read_serving(options.results, options.offline)
    if not runs:
        parser.error(f"{options.results} has no serving-*.json")
    print(serving_section(runs))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
