"""The figures of a load: times at percentiles, rates, goodput, and the server's own counters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from ...clients import Cost
from .loops import Sample
from .plan import Level


class Spread(NamedTuple):
    """Percentiles in seconds, each a measured time (nearest rank)."""

    p50: float
    p90: float
    p99: float


def spread(times_s: Sequence[float]) -> Spread | None:
    if not times_s:
        return None
    ranked = sorted(times_s)
    return Spread(*(ranked[math.ceil(share * len(ranked)) - 1] for share in (0.5, 0.9, 0.99)))


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of an asynclane server since its start, over all its clients."""

    forwards: float
    committed: float
    computed: float

    def since(self, before: Counters) -> Counters:
        return Counters(
            self.forwards - before.forwards, self.committed - before.committed, self.computed - before.computed
        )


def read_counters(exposition: str) -> Counters | None:
    """Return None for a text that is no metrics, or another server's."""
    try:
        samples = [sample for family in text_string_to_metric_families(exposition) for sample in family.samples]
    except ValueError:
        return None
    values = {sample.name: sample.value for sample in samples}
    names = [f"asynclane_{name}_total" for name in ("forwards", "committed_tokens", "computed_tokens")]
    return Counters(*(values[name] for name in names)) if values.keys() >= set(names) else None


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one level. `tokens` are answer tokens of successful requests by the server's usage; None without
    usage. `wall_s` is from the first request to the last end. Only asynclane has `counted` and `costs`."""

    level: Level
    completed: int
    failures: Counter[str]
    wall_s: float
    within_deadline: int
    tokens: int | None
    first_text: Spread | None
    per_token: Spread | None
    end_to_end: Spread | None
    costs: tuple[Cost, ...]
    counted: Counters | None

    @property
    def failed(self) -> int:
        return self.failures.total()

    @property
    def requests_per_s(self) -> float:
        return self.completed / self.wall_s

    @property
    def goodput_per_s(self) -> float:
        return self.within_deadline / self.wall_s

    @property
    def tokens_per_s(self) -> float | None:
        return None if self.tokens is None else self.tokens / self.wall_s

    @property
    def tokens_per_forward(self) -> float | None:
        """Answer tokens per forward of the whole server: one forward brings tokens of many requests."""
        return self.counted.committed / self.counted.forwards if self.counted and self.counted.forwards else None

    @property
    def computed_per_token(self) -> float | None:
        return self.counted.computed / self.counted.committed if self.counted and self.counted.committed else None


def sum_up(level: Level, samples: Sequence[Sample], deadline_s: float, counted: Counters | None) -> Result:
    """Raises `ValueError` for no samples: a level without requests has no figures."""
    if not samples:
        raise ValueError(f"no request was made at {level}: give it more time")
    good = [sample for sample in samples if sample.failure is None]
    usages = [sample.usage for sample in good]
    known = [usage for usage in usages if usage is not None and "completion_tokens" in usage.model_fields_set]
    times_s = [sample.end_s - sample.due_s for sample in good]
    return Result(
        level=level,
        completed=len(good),
        failures=Counter(sample.failure.kind for sample in samples if sample.failure is not None),
        wall_s=max(sample.end_s for sample in samples) - min(sample.due_s for sample in samples),
        within_deadline=sum(time_s <= deadline_s for time_s in times_s),
        tokens=sum(usage.completion_tokens for usage in known) if len(known) == len(usages) else None,
        first_text=spread([sample.first_s - sample.due_s for sample in good if sample.first_s is not None]),
        per_token=spread([time_s for sample in good if (time_s := _per_token_s(sample)) is not None]),
        end_to_end=spread(times_s),
        costs=tuple(usage.cost for usage in known if usage.cost is not None),
        counted=counted,
    )


def _per_token_s(sample: Sample) -> float | None:
    """Return the time after the first text over the tokens but one, as servers of autoregressive models define it.
    Usage includes a model's thoughts. The first text of a diffusion model may be many tokens."""
    if sample.began_s is None or sample.usage is None or sample.usage.completion_tokens < 2:
        return None
    return (sample.end_s - sample.began_s) / (sample.usage.completion_tokens - 1)
