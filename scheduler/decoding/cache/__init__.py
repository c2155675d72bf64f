"""Third axis of a decoder: which positions a step computes, and which keys it sees. `CACHES` has a row for each.

All caches are one mechanism: stretches of positions, each a row `[start, end)` whose keys and values are written in
place and whose queries see `[0, visible)`. They differ in where the stretches are. Most compute one; those that compute
several share what `partial` has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..params import Knobs, Values
from .base import (
    NOTHING,
    CachePolicy,
    Canvas,
    Progress,
    Reach,
    Shown,
    Window,
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
    "Cached",
    "Canvas",
    "Compact",
    "Delayed",
    "Dual",
    "Finished",
    "Interval",
    "NoCache",
    "Prefix",
    "Progress",
    "Reach",
    "Shown",
    "Sliding",
    "Window",
]


@dataclass(frozen=True, slots=True)
class Cached:
    """A row of `CACHES`: what makes a request's policy, and its knobs with their defaults and the values they may
    have."""

    policy: Callable[[Knobs], CachePolicy]
    defaults: Mapping[str, object] = field(default_factory=dict)
    knobs: Mapping[str, Values] = field(default_factory=dict)


CACHES: Mapping[str, Cached] = {
    "none": Cached(lambda knobs: NoCache()),
    "prefix": Cached(lambda knobs: Prefix()),
    "dual": Cached(lambda knobs: Dual()),
    # Its knobs are AsyncLane's, which other decoders do not have.
    "compact": Cached(
        lambda knobs: Compact(
            knobs.integer("refresh_every"), knobs.text("refresh_on"), knobs["reuse"] is True, knobs["settle"] is True
        )
    ),
    "d2": Cached(D2.of, D2.DEFAULTS, D2.KNOBS),
    "delayed": Cached(Delayed.of, Delayed.DEFAULTS, Delayed.KNOBS),
    "finished": Cached(Finished.of, Finished.DEFAULTS, Finished.KNOBS),
    "interval": Cached(Interval.of, Interval.DEFAULTS, Interval.KNOBS),
    "window": Cached(Sliding.of, Sliding.DEFAULTS, Sliding.KNOBS),
}
