"""Simulates the pauses in streams that long prompts cause, by the limit on prompt positions in one step.

Usage: python -m asynclane.bench.steps.prefill [--limits auto,0,512] [--streams 64] [--long 16000] [--curve FILE]
The scheduler is the real one. A step takes the time that the measured curve of a block-causal model has for its
positions, and more for keys beyond those of the curve, at the measured rate of attention; the host takes none. Streams
never pause between requests: whoever has its answer sends the next prompt. With `--long` these prompts are short, and
each two seconds after the last one's first token a prompt of so many tokens comes. `beside_p99` is then of the gaps
while it is computed, and `over` is that over the median of all other gaps; `long_first` is the median of its own wait.
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
from ...scheduler.step_cost import Halving, Pacing, StepCost
from ..load.output import finish, positive, program, table
from ..report import RESULTS

CURVE = RESULTS / "offline-sdar-8b.json"
BLOCK, PAGE = 4, 16  # of SDAR
PROMPTS, ANSWERS = (16, 1600), (32, 400)  # tokens, least and most
MASK, WORD = 0, 1
LENGTH = 2048
AUTO = -1  # the limit of a server without --chunked-prefill-size
SHORT, LONG_ANSWER, QUIET_S = (16, 200), 32, 2.0  # beside long prompts; after one, until the next comes
KERNELS, ATTENTION = RESULTS / "kernels.json", "llada-8b, prefills of 32 to 2048"  # whose rate is taken
LAYERS, HEADS, HEAD_DIM = 36, 32, 128  # of SDAR-8B


class Network:
    """An executor that commits the first open positions of each row, so many in every step."""

    def __init__(self, tokens: int, length: int) -> None:
        self._tokens, self._length = tokens, length
        self._canvases: dict[int, np.ndarray] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        for placement in plan.placements:
            canvas = self._canvases[placement.slot] = np.full(self._length, MASK, np.int32)
            canvas[: len(placement.prompt)] = placement.prompt
        found = [np.zeros(0, np.int32)]
        for row in plan.rows:
            for span in row.spans:
                part = self._canvases[row.slot][span.start : span.end]
                part[np.flatnonzero(part == MASK)[: self._tokens]] = WORD
                found.append(part.copy())
        tokens = np.concatenate(found)
        return StepResult(tokens, np.full(len(tokens), WORD, np.int32), np.ones(len(tokens)), device_s=0.0)


class Traffic(NamedTuple):
    """`streams` at once for so many `seconds`, of which a forward commits `tokens`; positions of a `long` prompt beside
    them, 0: none."""

    streams: int
    seconds: float
    tokens: int
    long: int = 0


class Pauses(NamedTuple):
    """Seconds of each step, between two chunks of each stream, the same while a long prompt is computed, from each
    request to its first chunk, and that of long prompts; and tokens in all."""

    steps: list[float]
    gaps: list[float]
    beside: list[float]
    firsts: list[float]
    long_firsts: list[float]
    tokens: int


def simulate(limit: int, traffic: Traffic, cost: StepCost, keys: int = 0) -> Pauses:
    """The same load for every `limit`. All streams begin at once. The curve of `cost` is of so many `keys`."""
    rng, number, now, free_at = random.Random(0), 0, 0.0, 0.0
    streams, longest = traffic.streams, LENGTH + traffic.long + -traffic.long % PAGE
    pages, most = (streams * LENGTH + longest) // PAGE, LENGTH if limit == AUTO else limit
    limits = Limits(streams + 1, pages, PAGE, max(4096, longest), longest, streams + 1, prefill_tokens=most)
    pattern, halving = AttentionPattern(block_size=BLOCK), Halving(cost)
    pacing = Pacing(cost, halving, BLOCK) if limit == AUTO else None
    vocabulary = Vocabulary(["", "word"], MASK, end_ids=[])
    scheduler = Scheduler(limits, vocabulary, halving=halving, pattern=pattern, pacing=pacing)
    network, in_flight = Network(traffic.tokens, longest), deque[tuple[StepPlan, float]]()
    sent, last = dict[int, float](), dict[int, float]()  # when a request came, and when it brought tokens
    long, long_at = -1, QUIET_S if traffic.long else traffic.seconds  # the long prompt that is computed, and the next
    pauses, total = Pauses([], [], [], [], [], 0), 0

    def send(prompt: int, answer: int) -> None:
        tokens = np.full(prompt, WORD, np.int32)
        scheduler.add(Request(number, tokens, answer, resolve("fast-dllm", {}, answer, pattern)))
        sent[number] = now

    while now < traffic.seconds:
        while len(sent) < streams + (long in sent):
            send(rng.randint(*(SHORT if traffic.long else PROMPTS)), rng.randint(*ANSWERS))
            number += 1
        if long_at <= now and long not in sent:
            long = number
            send(traffic.long, LONG_ANSWER)
            number += 1
        while len(in_flight) < 2 and (planned := scheduler.plan()) is not None:
            pairs = sum(row.tokens * max(0, row.visible - keys) for row in planned.rows)
            pauses.steps.append(cost(planned.tokens) + cost.pair_s * pairs)
            free_at = max(now, free_at) + pauses.steps[-1]
            in_flight.append((planned, free_at))
        plan, now = in_flight.popleft()
        for update in scheduler.commit(network.execute(plan)):
            one = update.request_id
            if len(update.tokens):
                total += len(update.tokens)
                if one in last:
                    (pauses.beside if long in sent and long not in last else pauses.gaps).append(now - last[one])
                else:
                    (pauses.long_firsts if one == long else pauses.firsts).append(now - sent[one])
                last[one] = now
            if update.outcome is not None:
                del sent[one]
                long_at = now + QUIET_S if one == long else long_at
    return pauses._replace(tokens=total)


def read_curve(path: Path, pair_s: float = 0.0) -> StepCost:
    """The cost of a step from the file of `steps.offline`. Raises `ValueError` for another file, and `OSError`."""
    try:
        steps = json.loads(path.read_text(encoding="utf-8"))["steps"]
        points = {step["tokens"]: step["ours_ms"] / 1e3 for step in steps if step["load"].isdigit()}
        return StepCost([*points], [*points.values()], pair_s)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} is no file of steps.offline: {type(error).__name__} {error}") from None


def measured_pair_s() -> float:
    """Seconds that attention takes for a pair of a position and a key, in all layers, at the rate of long prompts."""
    kernels = json.loads(KERNELS.read_text(encoding="utf-8"))["kernels"]
    rate = next(kernel["operations_per_s"] for kernel in kernels if kernel["load"] == ATTENTION)
    return LAYERS * 4 * HEADS * HEAD_DIM / float(rate)


def main(argv: Sequence[str] | None = None) -> int:
    parser = program("steps.prefill", __doc__)
    parser.add_argument(
        "--limits",
        type=_limits,
        default=(AUTO, 0, 256, 512, 1024),
        help="0: none; auto: as a server without --chunked-prefill-size (default: auto,0,256,512,1024)",
    )
    parser.add_argument("--streams", type=positive, default=64, help="at once (default: %(default)s)")
    parser.add_argument("--seconds", type=positive, default=60, help="of simulated time (default: %(default)s)")
    parser.add_argument("--tokens", type=positive, default=2, help="that a forward commits (default: %(default)s)")
    parser.add_argument("--curve", type=Path, default=CURVE, metavar="FILE", help="of steps.offline (%(default)s)")
    parser.add_argument("--long", type=positive, default=0, help="tokens of a prompt that comes beside short ones")
    options = parser.parse_args(argv)
    try:
        cost = read_curve(options.curve, measured_pair_s())
        keys = json.loads(options.curve.read_text(encoding="utf-8"))["keys"]
    except (OSError, ValueError) as error:
        parser.error(str(error))
    found = []
    for limit in options.limits:
        traffic = Traffic(options.streams, options.seconds, options.tokens, options.long)
        named = {"limit": "auto" if limit == AUTO else limit}
        found.append({**named, **_figures(simulate(limit, traffic, cost, keys), options.seconds)})
    print(table(list(found[0]), [[str(value) for value in figures.values()] for figures in found]))
    arguments = {"curve": options.curve.name, "streams": options.streams, "seconds": options.seconds}
    arguments |= {"tokens": options.tokens, "long": options.long, "pair_ns": round(1e9 * cost.pair_s, 3)}
    finish({"benchmark": "prefill", **arguments, "limits": found}, options.json)
    return 0


def _figures(pauses: Pauses, seconds: float) -> dict[str, float]:
    """Milliseconds, but for the rate and a ratio."""
    beside = {}
    if pauses.beside:
        over = float(np.percentile(pauses.beside, 99)) / float(np.percentile(pauses.gaps, 50))
        beside = {"beside_p50": _percentile(pauses.beside, 50), "beside_p99": _percentile(pauses.beside, 99)}
        beside |= {"over": round(over, 2), "long_first": _percentile(pauses.long_firsts, 50)}
    return {
        "step_p99.9": _percentile(pauses.steps, 99.9),
        "gap_p50": _percentile(pauses.gaps, 50),
        "gap_p99": _percentile(pauses.gaps, 99),
        "gap_p99.9": _percentile(pauses.gaps, 99.9),
        "gap_max": _percentile(pauses.gaps, 100),
        "first_p50": _percentile(pauses.firsts, 50),
        "first_p99": _percentile(pauses.firsts, 99),
        "tokens_per_s": round(pauses.tokens / seconds, 1),
        **beside,
    }


def _percentile(seconds: list[float], percent: float) -> float:
    return round(1e3 * float(np.percentile(seconds, percent)), 1)


def _limits(text: str) -> tuple[int, ...]:
    try:
        limits = tuple(AUTO if part == "auto" else int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers or auto, with commas between, not {text!r}") from None
    if any(limit < BLOCK for limit in limits if limit not in (0, AUTO)):
        raise argparse.ArgumentTypeError(f"must be 0 or at least a block of {BLOCK}, not {text!r}")
    return limits


if __name__ == "__main__":
    raise SystemExit(main())
