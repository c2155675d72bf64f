"""Measures the host time of a step: plan, commit and packing of many requests, without a network.

Usage: python -m asynclane.bench.steps.host [--load lanes] [--requests 24] [--steps 300] [--rule credit] [--cold]
In the load `lanes` up to four lanes of a request commit one token each, and fork. In `blocks`, as with SDAR's shape, a
request has one block of four positions and commits two tokens. A request that ends makes room for a new one. With a
host rule, the program also prints the time that the rule adds for each request.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from ...scheduler.contract import MOST_RANKS, Ints, Scores, StepPlan, StepResult
from ...scheduler.decoding.attention_pattern import PLAIN, AttentionPattern
from ...scheduler.decoding.commit import HOST_RULES
from ...scheduler.decoding.params import ParamError
from ...scheduler.decoding.resolve import resolve
from ...scheduler.decoding.vocabulary import Vocabulary
from ...scheduler.memory.pages import Limits
from ...scheduler.request import Request
from ...scheduler.scheduler import Scheduler
from ...server.collector import spare_collections
from ..load.output import finish, positive, program

MASK, PERIOD, WORD = 0, 1, 2
PIECES = ["", ".", *(f" word{number}" for number in range(MOST_RANKS))]
PROMPT, CANVAS, LANES_EACH, BLOCK = 100, 4096, 4, 4
LANES = 64
LANES_PER_REQUEST = 8 / 3  # on average; a request has at most `LANES_EACH`
WARM_UP = 100  # steps until as many lanes live as later on
TRIES = 10  # steps for each one with enough lanes, before the load is given up
DRAFTS = 0.995  # lanes commit below this threshold; drafts are not written here
SURE, UNSURE = 0.99, 0.01
DEVICE_S = 0.003  # of a step, while the host sleeps
CACHED_BYTES = 20 << 20


@dataclass(frozen=True, slots=True)
class Load:
    """The decoder of all requests with its parameters, on a network of this pattern, and how often a token is a
    period."""

    params: dict[str, object]
    pattern: AttentionPattern = PLAIN
    periods: float = 0.0


LOADS = {
    "lanes": Load({"max_lanes": LANES_EACH, "min_fill": 0.1, "refresh_every": 0}, periods=0.2),
    "blocks": Load({"steps": CANVAS // 2}, AttentionPattern(block_size=BLOCK)),
}


class SlowCommits:
    """An executor that is sure of as many positions of each lane as its rule takes (of one if the host decides), and
    sometimes of a period, so that lanes fork, live and end. At all other positions it proposes another word in every
    step."""

    def __init__(self, seed: int, periods: float, host_rule: bool) -> None:
        self._random, self._periods, self._host_rule = np.random.default_rng(seed), periods, host_rule
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
                if len(open_) and (span.rule.sure or span.rule.threshold < DRAFTS):
                    count = 1 if self._host_rule else max(1, span.rule.sure)
                    chosen = open_[:count] if self._random.random() < 0.5 else open_[-count:]
                    lane[chosen] = PERIOD if self._random.random() < self._periods else WORD
                    sure += (at + chosen).tolist()
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


class Packing:
    """Packs plans as `models.exec.graphs` does for a GPU, without one: it chooses a shape and fills its buffer."""

    def __init__(self, requests: int, tokens: int) -> None:
        import torch

        from ...models.exec.forms import Forms
        from ...models.exec.shapes import ShapeSet, default_sizes
        from ...models.numerics import Numerics
        from .shapes import SHAPES

        shapes = ShapeSet(SHAPES["llada-8b"], Numerics(torch.bfloat16), requests, default_sizes(tokens))
        self._forms = Forms(shapes)
        self._words: dict[object, np.ndarray] = {}

    def __call__(self, plan: StepPlan) -> float:
        """The seconds that it takes."""
        started = time.perf_counter()
        form = self._forms.of(plan)
        padding = form.fit.padding
        chosen = time.perf_counter()
        if padding not in self._words:  # a GPU's are pinned memory, and stay
            self._words[padding] = np.ones(padding.shape.words, np.int32)  # all of it has been written to
        words, begun = self._words[padding], time.perf_counter()
        form.pack_into(words, plan, shift=0)
        return time.perf_counter() - begun + chosen - started


def cool_down(memory: np.ndarray) -> None:
    """Let the processor rest as while a GPU computes, and forget what it has cached."""
    time.sleep(DEVICE_S)
    memory.sum()


def measure(
    load: Load, requests: int, steps: int, rule: str | None = None, lanes: int = 1, cold: bool = False
) -> dict[str, float]:
    """Return milliseconds of plan, commit and packing: medians over steps with at least `lanes` live lanes. In between
    others use the processor if it is `cold`. Raises `RuntimeError` if there are too few such steps."""
    length, shared = PROMPT + CANVAS, bool(load.pattern.block_size)
    limits = Limits(requests, requests * 512, 16, requests * length, length, requests, shared)
    scheduler = Scheduler(limits, Vocabulary(PIECES, MASK, end_ids=[]), pattern=load.pattern)
    executor, packing = SlowCommits(0, load.periods, host_rule=rule is not None), Packing(requests, requests * length)
    params = load.params if rule is None else {**load.params, "rule": rule}
    added, done = 0, 0
    times: list[tuple[float, float, float]] = []  # of plan, commit and packing, in seconds
    live: list[int] = []
    memory = np.ones(CACHED_BYTES if cold else 0, np.int8)
    while len(times) < steps:
        if done > WARM_UP + TRIES * steps:
            raise RuntimeError(f"only {len(times)} of {done} steps had {lanes} lanes: choose fewer, or more requests")
        while len(scheduler.running) + len(scheduler.waiting) < requests:
            # Prompts differ, so that nobody reads the pages of another one.
            prompt = np.full(PROMPT, WORD, np.int32)
            prompt[:4] = WORD + added // 20 ** np.arange(4) % 20
            scheduler.add(Request(added, prompt, CANVAS, resolve("asynclane", params, CANVAS, load.pattern)))
            added += 1
        started = time.perf_counter()
        plan = scheduler.plan()
        planned = time.perf_counter()
        if plan is None:
            raise RuntimeError("nothing was planned")
        packed = packing(plan)
        result = executor.execute(plan)
        if cold:
            cool_down(memory)
        executed = time.perf_counter()
        scheduler.commit(result)
        committed = time.perf_counter()
        done += 1
        carried = sum(len(sequence.tree.live) for sequence in scheduler.running.values())
        if done > WARM_UP and carried >= lanes:
            times.append((planned - started, committed - executed, packed))
            live.append(carried)
    plan_ms, commit_ms, pack_ms = (statistics.median(column) * 1e3 for column in zip(*times, strict=True))
    host_ms = statistics.median(map(sum, times)) * 1e3
    return {
        "lanes": statistics.fmean(live),
        "requests": requests,
        "plan_ms": plan_ms,
        "commit_ms": commit_ms,
        "pack_ms": pack_ms,
        "host_ms": host_ms,
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
    parser.add_argument("--load", choices=LOADS, default="lanes", help="what requests do (default: %(default)s)")
    parser.add_argument("--requests", type=positive, help="requests of a step (default: 3 for each 8 lanes)")
    parser.add_argument("--lanes", type=positive, help=f"live lanes of a step, at least (default: {LANES}, or any)")
    parser.add_argument("--steps", type=positive, default=300, help="steps to measure (default: %(default)s)")
    parser.add_argument("--cold", action="store_true", help="sleep and clear the processor's caches before each commit")
    rules = lane_rules()
    parser.add_argument("--rule", choices=rules, metavar="RULE", help=f"one of {', '.join(rules)}; with lanes")
    options = parser.parse_args(argv)
    load = LOADS[options.load]
    if options.rule and options.load != "lanes":
        parser.error("--rule goes with --load lanes")
    lanes = options.lanes or (1 if options.requests or options.load != "lanes" else LANES)
    requests = options.requests or max(1, int((options.lanes or LANES) / LANES_PER_REQUEST))
    spare_collections()  # as in the server
    try:
        figures = measure(load, requests, options.steps, options.rule, lanes, options.cold)
        plain = measure(load, requests, options.steps, lanes=lanes, cold=options.cold) if options.rule else figures
    except RuntimeError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    print(f"{figures['lanes']:.0f} live lanes of {requests} requests, median of {options.steps} steps")
    print(
        f"plan {figures['plan_ms']:.3f} ms, commit {figures['commit_ms']:.3f} ms, packing {figures['pack_ms']:.3f} ms"
    )
    if options.rule:
        figures["rule_ms"] = (figures["host_ms"] - plain["host_ms"]) / requests
        rule_ms, plain_ms = figures["rule_ms"], plain["host_ms"]
        print(f"the rule adds {rule_ms:.3f} ms for each request ({plain_ms:.3f} ms in all without it)")
    finish({"benchmark": "host", "load": options.load, "rule": options.rule, "cold": options.cold, **figures})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
