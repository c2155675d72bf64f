"""How much host time a step costs: the scheduler's plan and commit at 64 live lanes, without a network.

Usage: python -m asynclane.bench.steps.host [--lanes 64] [--steps 300] [--rule credit]
With a rule of the papers the host decides what commits; what that costs each request is told as well.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from ...scheduler.contract import MOST_RANKS, Ints, Scores, StepPlan, StepResult
from ...scheduler.decoding.commit import HOST_RULES
from ...scheduler.decoding.params import ParamError
from ...scheduler.decoding.resolve import resolve
from ...scheduler.decoding.vocabulary import Vocabulary
from ...scheduler.memory.pages import Limits
from ...scheduler.request import Request
from ...scheduler.scheduler import Scheduler
from ..load.output import json_line, positive

MASK, PERIOD, WORD = 0, 1, 2
PIECES = ["", ".", *(f" word{number}" for number in range(MOST_RANKS))]
PROMPT, CANVAS, LANES_EACH = 100, 4096, 4
DRAFTS = 0.995  # lanes commit below this threshold, drafts are not written here
SURE, UNSURE = 0.99, 0.01
ENDED = "ask for fewer of either, or for a rule that commits nothing unsure (not ass, klass, learn2pd or tspd)"


class SlowCommits:
    """Is sure of one position of each lane in every step, now and then of a period, so that lanes fork, live and end;
    at all others it proposes another word in every step."""

    def __init__(self, seed: int, judged: bool) -> None:
        self._random, self._judged = np.random.default_rng(seed), judged
        self._canvases: dict[int, np.ndarray] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        for placement in plan.placements:
            self._canvases[placement.slot] = np.full(PROMPT + CANVAS, MASK, np.int32)
        tokens: list[np.ndarray] = []
        sure: list[int] = []
        at = 0
        for row in plan.rows:
            if row.host_tokens is not None:
                self._canvases[row.slot][row.start : row.end] = row.host_tokens
            for span in row.spans:
                lane = self._canvases[row.slot][span.start : span.end]
                open_ = np.flatnonzero(lane == MASK)
                if len(open_) and span.rule.threshold < DRAFTS:
                    chosen = open_[0] if self._random.random() < 0.5 else open_[-1]
                    lane[chosen] = PERIOD if self._random.random() < 0.2 else WORD
                    sure.append(at + int(chosen))
                tokens.append(lane.copy())
                at += len(lane)
        return self._told(np.concatenate(tokens), sure, ranked=any(row.ranks for row in plan.rows))

    def _told(self, tokens: np.ndarray, sure: list[int], ranked: bool) -> StepResult:
        """A device leaves all that may commit to a rule on the host."""
        words = self._random.integers(WORD, len(PIECES), len(tokens), np.int32)
        proposals: Ints = np.where(tokens == MASK, words, tokens)
        confidence = np.full(len(tokens), UNSURE)
        confidence[sure] = SURE
        if not self._judged:
            return StepResult(tokens, proposals, confidence, device_s=0.0)
        scores = None
        if ranked:
            likely = PERIOD + (proposals[:, None] - PERIOD + np.arange(MOST_RANKS, dtype=np.int32)) % MOST_RANKS
            logprobs = np.log(confidence)[:, None] - np.arange(MOST_RANKS)
            scores = Scores(logprobs[:, 0].astype(np.float32), likely.astype(np.int32), logprobs.astype(np.float32))
        return StepResult(proposals, proposals, confidence, 0.0, scores, confidence.astype(np.float32) - 1)


def measure(lanes: int, steps: int, rule: str | None = None) -> dict[str, float]:
    """Milliseconds of plan and commit, medians over steps that carried at least `lanes` live lanes. Raises
    `RuntimeError` if there are too few of these."""
    count = max(1, lanes * 3 // 8)  # requests; each holds between two and three lanes on average
    limits = Limits(count, count * 512, 16, count * (PROMPT + CANVAS), PROMPT + CANVAS, count)
    scheduler = Scheduler(limits, Vocabulary(PIECES, MASK, end_ids=[]))
    executor = SlowCommits(seed=0, judged=rule is not None)
    knobs: dict[str, object] = {"max_lanes": LANES_EACH, "min_fill": 0.1, "refresh_every": 0}
    decoder = resolve("asynclane", knobs if rule is None else {**knobs, "rule": rule}, CANVAS)
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
            raise RuntimeError(f"the load ended after {len(plans)} steps with {lanes} lanes: {ENDED}")
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


def lane_rules() -> list[str]:
    """Those that lanes take."""
    taken = []
    for rule in HOST_RULES:
        with suppress(ParamError):
            resolve("asynclane", {"rule": rule}, CANVAS)
            taken.append(rule)
    return taken


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m asynclane.bench.steps.host", description=__doc__)
    parser.add_argument("--lanes", type=positive, default=64)
    parser.add_argument("--steps", type=positive, default=300)
    rules = lane_rules()
    parser.add_argument("--rule", choices=rules, metavar="RULE", help=f"one of {', '.join(rules)}")
    options = parser.parse_args(argv)
    try:
        figures = measure(options.lanes, options.steps, options.rule)
        plain = measure(options.lanes, options.steps) if options.rule else figures
    except RuntimeError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    print(f"{figures['lanes']:.0f} live lanes of {figures['requests']} requests, median of {options.steps} steps")
    print(f"plan {figures['plan_ms']:.3f} ms, commit {figures['commit_ms']:.3f} ms")
    if options.rule:
        figures["rule_ms"] = (figures["host_ms"] - plain["host_ms"]) / figures["requests"]
        print(f"without a rule {plain['host_ms']:.3f} ms in all: {figures['rule_ms']:.3f} ms less for each request")
    print(json_line({"benchmark": "host", "rule": options.rule, **figures}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
