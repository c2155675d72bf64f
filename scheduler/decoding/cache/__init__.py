"""Third axis of a decoder: which positions a step computes, and which keys it sees. `CACHES` has a row for each.

All caches are one mechanism: stretches of positions, each a row `[start, end)` whose keys and values are written in
place and whose queries see `[0, visible)`. They differ in where the stretches are. Most compute one; those that compute
several share what `partial` has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..params import Params, Values
from .base import (
    NOTHING,
    CachePolicy,
    Canvas,
    ComputeRange,
    Progress,
    RequestExtent,
    StepConfidence,
)
from .compact import Compact
from .d2 import D2
from .delayed import Delayed
from .dual import Dual
from .finished import Finished
from .interval import Interval
from .none import NoCache
from .prefix import Prefix
from .sliding import Sliding

__all__ = [
    "CACHES",
    "D2",
    "NOTHING",
    "CachePolicy",
    "CacheSpec",
    "Canvas",
    "Compact",
    "ComputeRange",
    "Delayed",
    "Dual",
    "Finished",
    "Interval",
    "NoCache",
    "Prefix",
    "Progress",
    "RequestExtent",
    "Sliding",
    "StepConfidence",
]


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """A row of `CACHES`: what makes a request's policy, and its knobs with their defaults and the values they may
    have."""

    policy: Callable[[Params], CachePolicy]
    defaults: Mapping[str, object] = field(default_factory=dict)
    knobs: Mapping[str, Values] = field(default_factory=dict)


CACHES: Mapping[str, CacheSpec] = {
    "none": CacheSpec(lambda knobs: NoCache()),
    "prefix": CacheSpec(lambda knobs: Prefix()),
    "dual": CacheSpec(lambda knobs: Dual()),
    # Its knobs are AsyncLane's, which other decoders do not have.
    "compact": CacheSpec(
        lambda knobs: Compact(
            knobs.integer("refresh_every"), knobs.text("refresh_on"), knobs["reuse"] is True, knobs["settle"] is True
        )
    ),
    "d2": CacheSpec(D2.of, D2.DEFAULTS, D2.PARAMS),
    "delayed": CacheSpec(Delayed.of, Delayed.DEFAULTS, Delayed.PARAMS),
    "finished": CacheSpec(Finished.of, Finished.DEFAULTS, Finished.PARAMS),
    "interval": CacheSpec(Interval.of, Interval.DEFAULTS, Interval.PARAMS),
    "window": CacheSpec(Sliding.of, Sliding.DEFAULTS, Sliding.PARAMS),
}
