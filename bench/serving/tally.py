"""The figures of a load: what clients saw between two moments, beside what the server's own metrics grew by."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .load import Load

Answer = Mapping[str, Any]  # as `streams.record` returns it
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
UNUSED = 0.005  # of a core: a process that only waits
BUSY_CLIENT = 0.7  # of a core: its streams may wait for it


@dataclass(frozen=True, slots=True)
class Scrape:
    """The metrics of an asynclane server at a time of the monotonic clock, by name with labels, and the seconds of a
    processor that its processes have used, by number."""

    at_s: float
    values: Mapping[str, float]
    processor_s: Mapping[int, float] = field(default_factory=dict)

    def since(self, before: Scrape, name: str) -> float:
        name = f"asynclane_{name}"
        return self.values.get(name, 0.0) - before.values.get(name, 0.0)

    def cpu_shares(self, before: Scrape) -> list[float]:
        """Return the share of a core that each process used since then, the engine's first, the others by number."""
        wall_s = self.at_s - before.at_s
        used_s = (now_s - before.processor_s.get(pid, 0.0) for pid, now_s in self.processor_s.items())
        return [round(share_s / wall_s, 2) for share_s in used_s if share_s > UNUSED * wall_s]

    @property
    def captures(self) -> int | None:
        """The graphs captured since the start; None for a server without this metric."""
        found = self.values.get("asynclane_graph_captures_total")
        return None if found is None else int(found)


def read_metrics(exposition: str, at_s: float, processor_s: Mapping[int, float] | None = None) -> Scrape:
    """Raises `ValueError` for a text that is not the metrics of an asynclane server."""
    lines = (line.rpartition(" ") for line in exposition.splitlines() if line and not line.startswith("#"))
    try:
        scrape = Scrape(at_s, {name: float(value) for name, _, value in lines}, processor_s or {})
    except ValueError:
        scrape = Scrape(at_s, {})
    if "asynclane_committed_tokens_total" not in scrape.values:
        raise ValueError("/metrics has no counters of asynclane: only its own server has the device's times")
    return scrape


def spread_ms(times_s: Sequence[float]) -> dict[str, float] | None:
    """Return percentiles in milliseconds, each a measured time (nearest rank)."""
    if not times_s:
        return None
    ranked = sorted(times_s)
    return {name: round(1e3 * ranked[math.ceil(share * len(ranked)) - 1], 3) for name, share in PERCENTILES.items()}


def gaps(answers: Sequence[Answer], from_s: float, until_s: float) -> list[float]:
    """Return the times between chunks of a stream that began and ended between two moments."""
    return [
        after - before
        for answer in answers
        for before, after in pairwise(answer["times"])
        if from_s <= before and after <= until_s
    ]


def beside(
    answers: Sequence[Answer], long_answers: Sequence[Answer], from_s: float, until_s: float
) -> dict[str, Any] | None:
    """Return the gaps of streams while a long prompt was computed, from its request to its first text, against those
    without one. None if no long prompt had its request and its first text between two moments, or if no gap is of
    either kind."""
    computed = [(answer["start_s"], (answer["times"] or [answer["end_s"]])[0]) for answer in long_answers]
    whole = [answer for answer in long_answers if answer["failure"] is None and answer["times"]]
    whole = [answer for answer in whole if from_s <= answer["start_s"] and answer["times"][0] <= until_s]
    inside: list[float] = []
    quiet: list[float] = []
    for answer in answers:
        for before, after in pairwise(answer["times"]):
            if from_s <= before and after <= until_s:
                overlaps = any(before < end and start < after for start, end in computed)
                (inside if overlaps else quiet).append(after - before)
    found, usual = spread_ms(inside), spread_ms(quiet)
    if not whole or found is None or usual is None:
        return None
    return {
        "prompts": len(whole),
        "prompt_tokens": max(answer["prompt_tokens"] for answer in whole),
        "first_text_ms": spread_ms([answer["times"][0] - answer["start_s"] for answer in whole]),
        "gap_ms": found,
        "quiet_gap_ms": usual,
        "p99_over_quiet_p50": round(found["p99"] / usual["p50"], 2),
    }


def within(answer: Answer, from_s: float, until_s: float) -> float:
    """Return the share of an answer's time that lies between two moments."""
    lived_s = max(answer["end_s"] - answer["start_s"], 1e-9)
    return float(max(0.0, min(answer["end_s"], until_s) - max(answer["start_s"], from_s)) / lived_s)


def figures(load: Load, answers: Sequence[Answer], before: Scrape, after: Scrape) -> dict[str, Any]:
    """Return the figures of a load between two scrapes. An answer's tokens and forwards are spread evenly over its
    time, so that answers which begin before or end after the measurement count in part. Raises `ValueError` if no
    answer ended."""
    from_s, until_s = before.at_s, after.at_s
    wall_s = until_s - from_s
    touched = [answer for answer in answers if within(answer, from_s, until_s) > 0]
    good = [answer for answer in touched if answer["failure"] is None]
    ended = [answer for answer in good if from_s <= answer["end_s"] <= until_s]
    if not ended:
        failures = Counter(answer["failure"] for answer in touched if answer["failure"] is not None)
        raise ValueError(f"no answer ended at {load.streams} streams: {dict(failures) or 'give it more seconds'}")

    def spread_evenly(name: str) -> float:
        return float(sum(answer[name] * within(answer, from_s, until_s) for answer in good))

    tokens, forwards = spread_evenly("tokens"), spread_evenly("forwards")
    all_forwards = sum(answer["forwards"] for answer in ended)
    computed = sum(a["computed"] - (a["prompt_tokens"] - a["cached_tokens"]) for a in ended)
    device_s, host_s = (after.since(before, f'step_seconds_sum{{part="{part}"}}') for part in ("device", "host"))
    steps = after.since(before, "forwards_total")
    committed = after.since(before, "committed_tokens_total")
    return {
        "load": load.name,
        "streams": load.streams,
        "wall_s": round(wall_s, 3),
        "answers": len(ended),
        "failures": dict(Counter(answer["failure"] for answer in touched if answer["failure"] is not None)),
        "tokens_per_s": round(tokens / wall_s, 1),
        "tokens_per_forward": round(sum(answer["tokens"] for answer in ended) / all_forwards, 3),
        "positions_per_forward": round(computed / all_forwards, 2),
        "forward_ms": round(1e3 * sum(a["end_s"] - a["start_s"] for a in ended) / all_forwards, 3),
        "device_forward_ms": _ratio(1e3 * device_s * load.streams, forwards, 3),
        "bound_tokens_per_s": _ratio(committed, device_s, 1),
        "share_of_bound": _ratio(tokens / wall_s * device_s, committed, 4),
        "device_busy": round(device_s / wall_s, 4),
        "host_share": round(max(0.0, 1 - device_s / wall_s), 4),
        "steps": round(steps),
        "step_ms": _ratio(1e3 * device_s, steps, 3),
        "host_ms": _ratio(1e3 * host_s, steps, 3),
        "positions_per_step": _ratio(after.since(before, "computed_tokens_total"), steps, 1),
        "first_text_ms": spread_ms([a["times"][0] - a["start_s"] for a in ended if a["times"]]),
        "gap_ms": spread_ms(gaps(good, from_s, until_s)),
        "chunks": sum(from_s <= time_s <= until_s for answer in good for time_s in answer["times"]),
        "graph_captures": [before.captures, after.captures],
        "server_cpu_shares": after.cpu_shares(before),
    }


def _ratio(value: float, by: float, digits: int) -> float | None:
    return round(value / by, digits) if by else None
