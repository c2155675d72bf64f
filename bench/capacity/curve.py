"""A replica as `bench.serving` measured it: seconds of a round over its positions.

A round gives each running stream one forward. A server with two steps in flight computes it in two steps. The time of
a round depends on the positions that it computes, so one curve serves answers and prompts of any length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...scheduler.step_cost import StepCost

IN_FLIGHT = 2  # steps of a server: what a stream waits for, where its round is split
CHUNK = 512  # prompt positions in flight (`--chunked-prefill-size`)
WHOLE_PROMPTS = ("llada-8b", "dream-7b", "llada-moe-7b")  # bidirectional: a prompt is computed with its canvas


@dataclass(frozen=True, slots=True)
class Replica:
    """A server on one GPU. `chunk` bounds the prompt positions of a round; None: a prompt is computed as a whole.
    An answer's first text comes after `first_forwards` of its forwards."""

    name: str
    round_s: StepCost
    slots: int
    positions_per_forward: float
    tokens_per_forward: float
    first_forwards: int
    chunk: int | None

    def forwards(self, answer_tokens: int) -> int:
        return max(1, -int(-answer_tokens // self.tokens_per_forward))


def point(found: Mapping[str, Any]) -> tuple[float, float]:
    """Return the positions of a round and its seconds, the host's included, of one measured load."""
    forwards = found["tokens_per_s"] * found["wall_s"] / found["tokens_per_forward"]
    # Streams that wait for their prompts have no forward in a round: not more steps than are in flight.
    steps = min(IN_FLIGHT, max(1.0, found["steps"] * found["streams"] / forwards))
    return steps * found["positions_per_step"], steps * found["wall_s"] / found["steps"]


def read(path: Path) -> dict[str, Any]:
    """Return a run of `bench.serving`. Raises `ValueError` for another file, and `OSError`."""
    try:
        run: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if run["benchmark"] == "serving" and sum(found["load"] == "equal" for found in run["loads"]) >= 2:
            return run
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} is no result of bench.serving: {type(error).__name__} {error}") from None
    raise ValueError(f"{path.name} is no result of bench.serving with two levels or more")


def replica(run: Mapping[str, Any], without: Mapping[str, Any] | None = None) -> Replica:
    """Return the replica of a run, from its equal answers at each number of streams, but for the load `without`."""
    levels = sorted((found for found in run["loads"] if found["load"] == "equal"), key=lambda found: found["streams"])
    used = [found for found in levels if found is not without]
    fewest = levels[0]
    round_s = _cost([point(found) for found in used])
    shape = run["shape"] or run["model"]
    chunk = None if shape in WHOLE_PROMPTS else CHUNK
    forward = fewest["positions_per_forward"]
    prompt = 200 + (forward if chunk is None else 0.0)  # of `bench.serving`, by default
    forwards = (fewest["first_text_ms"]["p99"] / 1e3 - round_s(prompt)) / round_s(forward)
    return Replica(
        name=shape,
        round_s=round_s,
        slots=max(found["streams"] for found in levels),
        positions_per_forward=forward,
        tokens_per_forward=fewest["tokens_per_forward"],
        first_forwards=max(1, -int(-forwards // 1)) + (chunk is None),
        chunk=chunk,
    )


def _cost(points: Sequence[tuple[float, float]]) -> StepCost:
    positions, seconds = zip(*sorted(points), strict=True)
    return StepCost(positions, seconds)
