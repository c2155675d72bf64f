"""How much host time a step costs: the scheduler's plan and commit at 64 live lanes, without a network.

Usage: python -m asynclane.bench.host [--lanes 64] [--steps 300]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import numpy as np

from ..scheduler.contract import StepPlan, StepResult
from ..scheduler.decoders import resolve
from ..scheduler.pages import Limits
from ..scheduler.request import Request
from ..scheduler.scheduler import Scheduler
from ..scheduler.vocabulary import Vocabulary
from .report import json_line

MASK, PERIOD, WORD = 0, 1, 2
PIECES = ["", ".", " word"]
PROMPT, CANVAS, LANES_EACH = 100, 4096, 4
DRAFTS = 0.995  # lanes commit below this threshold, drafts are not written here


class SlowCommits:
    """Commits one position of each lane in every step, now and then a period, so that lanes fork, live and end."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._canvases: dict[int, np.ndarray] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        for placement in plan.placements:
            self._canvases[placement.slot] = np.full(PROMPT + CANVAS, MASK, np.int32)
        parts = []
        for row in plan.rows:
            for span in row.spans:
                lane = self._canvases[row.slot][span.start : span.end]
                open_ = np.flatnonzero(lane == MASK)
                if len(open_) and span.transfer.threshold < DRAFTS:
                    lane[open_[0] if self._random.random() < 0.5 else open_[-1]] = (
                        PERIOD if self._random.random() < 0.2 else WORD
                    )
                parts.append(lane.copy())
        tokens = np.concatenate(parts)
        return StepResult(tokens, tokens, np.ones(len(tokens)), device_s=0.0)


def measure(lanes: int, steps: int) -> dict[str, float]:
    """Milliseconds of plan and commit, medians over steps that carried at least `lanes` live lanes."""
    count = lanes * 3 // 8  # requests; each holds between two and three lanes on average
    limits = Limits(count, count * 512, 16, count * (PROMPT + CANVAS), PROMPT + CANVAS, count)
    scheduler = Scheduler(limits, Vocabulary(PIECES, MASK, end_ids=[]))
    executor = SlowCommits(seed=0)
    decoder = resolve("asynclane", {"max_lanes": LANES_EACH, "min_fill": 0.1, "refresh_every": 0}, CANVAS)
    for number in range(count):
        scheduler.add(Request(number, np.full(PROMPT, WORD, np.int32), CANVAS, decoder))
    plans: list[float] = []
    commits: list[float] = []
    live: list[int] = []
    while len(plans) < steps:
        started = time.perf_counter()
        plan = scheduler.plan()
        planned = time.perf_counter()
        if plan is None:
            raise RuntimeError(f"the load ended after {len(plans)} steps with {lanes} lanes; ask for fewer steps")
        result = executor.execute(plan)
        executed = time.perf_counter()
        scheduler.commit(result)
        committed = time.perf_counter()
        carried = sum(len(sequence.tree.live) for sequence in scheduler.running.values())
        if carried >= lanes:
            plans.append((planned - started) * 1e3)
            commits.append((committed - executed) * 1e3)
            live.append(carried)
    return {
        "lanes": statistics.fmean(live),
        "requests": count,
        "plan_ms": statistics.median(plans),
        "commit_ms": statistics.median(commits),
        "host_ms": statistics.median(p + c for p, c in zip(plans, commits, strict=True)),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m asynclane.bench.host", description=__doc__)
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args(argv)
    figures = measure(options.lanes, options.steps)
    print(f"{figures['lanes']:.0f} live lanes of {figures['requests']} requests, median of {options.steps} steps")
    print(f"plan {figures['plan_ms']:.3f} ms, commit {figures['commit_ms']:.3f} ms")
    print(json_line({"benchmark": "host", **figures}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
