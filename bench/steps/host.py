"""Measures the host time of a step: the scheduler's plan and commit at 64 live lanes, without a network.

Usage: python -m asynclane.bench.steps.host [--lanes 64] [--requests 24] [--steps 300] [--rule credit]
With a host rule, the program also prints the time that the rule adds for each request.
"""

from __future__ import annotations

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
from ..load.output import finish, positive, program

MASK, PERIOD, WORD = 0, 1, 2
PIECES = ["", ".", *(f" word{number}" for number in range(MOST_RANKS))]
PROMPT, CANVAS, LANES_EACH = 100, 4096, 4
LANES = 64
LANES_PER_REQUEST = 8 / 3  # on average; a request has at most `LANES_EACH`
DRAFTS = 0.995  # lanes commit below this threshold; drafts are not written here
SURE, UNSURE = 0.99, 0.01
ENDED = "choose fewer of either, or a rule that commits nothing unsure (not ass, klass, learn2pd or tspd)"


class SlowCommits:
    """An executor that is sure of one position of each lane in every step, and sometimes of a period, so that lanes
    fork, live and end. At all other positions it proposes another word in every step."""

    def __init__(self, seed: int, host_rule: bool) -> None:
        self._random, self._host_rule = np.random.default_rng(seed), host_rule
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
        return self._result(np.concatenate(tokens), sure, ranked=any(row.ranks for row in plan.rows))

    def _result(self, tokens: np.ndarray, sure: list[int], ranked: bool) -> StepResult:
        """With a host rule, the device commits nothing itself."""
        words = self._random.integers(WORD, len(PIECES), len(tokens), np.int32)
        proposals: Ints = np.where(tokens == MASK, words, tokens)
        confidence = np.full(len(tokens), UNSURE)
        confidence[sure] = SURE
        if not self._host_rule:
            return StepResult(tokens, proposals, confidence, device_s=0.0)
        scores = None
        if ranked:
            likely = PERIOD + (proposals[:, None] - PERIOD + np.arange(MOST_RANKS, dtype=np.int32)) % MOST_RANKS
            logprobs = np.log(confidence)[:, None] - np.arange(MOST_RANKS)
            scores = Scores(logprobs[:, 0].astype(np.float32), likely.astype(np.int32), logprobs.astype(np.float32))
        return StepResult(proposals, proposals, confidence, 0.0, scores, confidence.astype(np.float32) - 1)


def measure(lanes: int, requests: int, steps: int, rule: str | None = None) -> dict[str, float]:
    """Return milliseconds of plan and commit: medians over steps with at least `lanes` live lanes. Raises
    `RuntimeError` if there are too few such steps."""
    limits = Limits(requests, requests * 512, 16, requests * (PROMPT + CANVAS), PROMPT + CANVAS, requests)
    scheduler = Scheduler(limits, Vocabulary(PIECES, MASK, end_ids=[]))
    executor = SlowCommits(seed=0, host_rule=rule is not None)
    params: dict[str, object] = {"max_lanes": LANES_EACH, "min_fill": 0.1, "refresh_every": 0}
    decoder = resolve("asynclane", params if rule is None else {**params, "rule": rule}, CANVAS)
    for number in range(requests):
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
        "requests": requests,
        "plan_ms": statistics.median(plans),
        "commit_ms": statistics.median(commits),
        "host_ms": (host_ms := statistics.median(map(sum, zip(plans, commits, strict=True)))),
        "per_request_ms": host_ms / requests,
    }


def lane_rules() -> list[str]:
    """Return the host rules that lanes accept."""
    accepted = []
    for rule in HOST_RULES:
        with suppress(ParamError):
            resolve("asynclane", {"rule": rule}, CANVAS)
            accepted.append(rule)
    return accepted


def main(argv: Sequence[str] | None = None) -> int:
    parser = program("steps.host", __doc__, json_file=False)
    parser.add_argument("--lanes", type=positive, help="live lanes of a step, at least (default: 64, or by --requests)")
    parser.add_argument("--requests", type=positive, help="requests of a step (default: 3 for each 8 lanes)")
    parser.add_argument("--steps", type=positive, default=300, help="steps to measure (default: %(default)s)")
    rules = lane_rules()
    parser.add_argument("--rule", choices=rules, metavar="RULE", help=f"one of {', '.join(rules)}")
    options = parser.parse_args(argv)
    lanes = options.lanes or (int(options.requests * LANES_PER_REQUEST) if options.requests else LANES)
    requests = options.requests or max(1, int(lanes / LANES_PER_REQUEST))
    try:
        figures = measure(lanes, requests, options.steps, options.rule)
        plain = measure(lanes, requests, options.steps) if options.rule else figures
    except RuntimeError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    print(f"{figures['lanes']:.0f} live lanes of {requests} requests, median of {options.steps} steps")
    print(f"plan {figures['plan_ms']:.3f} ms, commit {figures['commit_ms']:.3f} ms")
    if options.rule:
        figures["rule_ms"] = (figures["host_ms"] - plain["host_ms"]) / requests
        print(f"without a rule {plain['host_ms']:.3f} ms in all: {figures['rule_ms']:.3f} ms less for each request")
    finish({"benchmark": "host", "rule": options.rule, **figures})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
