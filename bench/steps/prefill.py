"""Simulates the pauses in streams that long prompts cause, with and without a limit on prompt positions in one step.

Usage: python -m asynclane.bench.steps.prefill [--limits 0,256,512] [--streams 64] [--seconds 60] [--curve FILE]
The scheduler is the real one. A step takes the time that the measured curve of a block-causal model has for its
positions, and the host takes none. Streams never pause between requests: whoever has its answer sends the next prompt.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...scheduler.contract import StepPlan, StepResult
from ...scheduler.decoding.attention_pattern import AttentionPattern
from ...scheduler.decoding.resolve import resolve
from ...scheduler.decoding.vocabulary import Vocabulary
from ...scheduler.memory.pages import Limits
from ...scheduler.request import Request
from ...scheduler.scheduler import Scheduler
from ...scheduler.step_cost import Halving, StepCost
from ..load.output import finish, positive, program, table
from ..report import RESULTS

CURVE = RESULTS / "offline-sdar-8b.json"
BLOCK, PAGE = 4, 16  # of SDAR
PROMPTS, ANSWERS = (16, 1600), (32, 400)  # tokens, least and most
MASK, WORD = 0, 1
LENGTH = 2048


class Network:
    """An executor that commits the first open positions of each row, so many in every step."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._canvases: dict[int, np.ndarray] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        for placement in plan.placements:
            canvas = self._canvases[placement.slot] = np.full(LENGTH, MASK, np.int32)
            canvas[: len(placement.prompt)] = placement.prompt
        found = [np.zeros(0, np.int32)]
        for row in plan.rows:
            for span in row.spans:
                part = self._canvases[row.slot][span.start : span.end]
                part[np.flatnonzero(part == MASK)[: self._tokens]] = WORD
                found.append(part.copy())
        tokens = np.concatenate(found)
        return StepResult(tokens, np.full(len(tokens), WORD, np.int32), np.ones(len(tokens)), device_s=0.0)


class Pauses(NamedTuple):
    """Seconds of each step, between two chunks of each stream, and from each request to its first chunk; and tokens in
    all."""

    steps: list[float]
    gaps: list[float]
    firsts: list[float]
    tokens: int


def simulate(limit: int, streams: int, seconds: float, tokens: int, cost: StepCost) -> Pauses:
    """The same load for every `limit`. All streams begin at once."""
    rng, number, now, free_at = random.Random(0), 0, 0.0, 0.0
    limits = Limits(streams, streams * LENGTH // PAGE, PAGE, 4096, LENGTH, streams, prefill_tokens=limit)
    pattern = AttentionPattern(block_size=BLOCK)
    scheduler = Scheduler(limits, Vocabulary(["", "word"], MASK, end_ids=[]), halving=Halving(cost), pattern=pattern)
    network, in_flight = Network(tokens), deque[tuple[StepPlan, float]]()
    sent, last = dict[int, float](), dict[int, float]()  # when a request came, and when it brought tokens
    pauses, total = Pauses([], [], [], 0), 0
    while now < seconds:
        while len(sent) < streams:
            prompt, answer = np.full(rng.randint(*PROMPTS), WORD, np.int32), rng.randint(*ANSWERS)
            scheduler.add(Request(number, prompt, answer, resolve("fast-dllm", {}, answer, pattern)))
            sent[number], number = now, number + 1
        while len(in_flight) < 2 and (planned := scheduler.plan()) is not None:
            pauses.steps.append(cost(planned.tokens))
            free_at = max(now, free_at) + pauses.steps[-1]
            in_flight.append((planned, free_at))
        plan, now = in_flight.popleft()
        for update in scheduler.commit(network.execute(plan)):
            one = update.request_id
            if len(update.tokens):
                total += len(update.tokens)
                (pauses.gaps if one in last else pauses.firsts).append(now - last.get(one, sent[one]))
                last[one] = now
            if update.outcome is not None:
                del sent[one]
    return pauses._replace(tokens=total)


def read_curve(path: Path) -> StepCost:
    """The cost of a step from the file of `steps.offline`. Raises `ValueError` for another file, and `OSError`."""
    try:
        steps = json.loads(path.read_text(encoding="utf-8"))["steps"]
        points = {step["tokens"]: step["ours_ms"] / 1e3 for step in steps if step["load"].isdigit()}
        return StepCost([*points], [*points.values()])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} is no file of steps.offline: {type(error).__name__} {error}") from None


def main(argv: Sequence[str] | None = None) -> int:
    parser = program("steps.prefill", __doc__)
    parser.add_argument(
        "--limits", type=_limits, default=(0, 256, 512, 768, 1024), help="0: none (default: %(default)s)"
    )
    parser.add_argument("--streams", type=positive, default=64, help="at once (default: %(default)s)")
    parser.add_argument("--seconds", type=positive, default=60, help="of simulated time (default: %(default)s)")
    parser.add_argument("--tokens", type=positive, default=2, help="that a forward commits (default: %(default)s)")
    parser.add_argument("--curve", type=Path, default=CURVE, metavar="FILE", help="of steps.offline (%(default)s)")
    options = parser.parse_args(argv)
    try:
        cost = read_curve(options.curve)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    found = []
    for limit in options.limits:
        pauses = simulate(limit, options.streams, options.seconds, options.tokens, cost)
        found.append({"limit": limit, **_figures(pauses, options.seconds)})
    print(table(list(found[0]), [[str(value) for value in figures.values()] for figures in found]))
    arguments = {"curve": options.curve.name, "streams": options.streams, "seconds": options.seconds}
    finish({"benchmark": "prefill", **arguments, "tokens": options.tokens, "limits": found}, options.json)
    return 0


def _figures(pauses: Pauses, seconds: float) -> dict[str, float]:
    """Milliseconds, but for the rate."""
    return {
        "step_p99.9": _percentile(pauses.steps, 99.9),
        "gap_p50": _percentile(pauses.gaps, 50),
        "gap_p99": _percentile(pauses.gaps, 99),
        "gap_p99.9": _percentile(pauses.gaps, 99.9),
        "gap_max": _percentile(pauses.gaps, 100),
        "first_p50": _percentile(pauses.firsts, 50),
        "first_p99": _percentile(pauses.firsts, 99),
        "tokens_per_s": round(pauses.tokens / seconds, 1),
    }


def _percentile(seconds: list[float], percent: float) -> float:
    return round(1e3 * float(np.percentile(seconds, percent)), 1)


def _limits(text: str) -> tuple[int, ...]:
    try:
        limits = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers with commas between, not {text!r}") from None
    if any(limit < BLOCK for limit in limits if limit):
        raise argparse.ArgumentTypeError(f"must be 0 or at least a block of {BLOCK}, not {text!r}")
    return limits


if __name__ == "__main__":
    raise SystemExit(main())
