"""Third axis of a decoder: which positions a step computes, and which keys it sees. `CACHES` is the table of policies.

All caches are one mechanism: ranges of positions, each a row `[start, end)` whose keys and values are written in place
and whose queries see `[0, visible)`. They differ in the ranges. Most compute one; those that compute several are
`Partial`.
"""

from __future__ import annotations

from collections.abc import Mapping

from .base import NO_CANVAS, CachePolicy, Canvas, ComputeRange, Progress, RequestExtent, StepConfidence
from .block import Block
from .compact import Compact
from .d2 import D2
from .delayed import Delayed
from .dsb import Dsb
from .dual import Dual
from .elastic import Elastic
from .entropy import EntropyCache
from .finished import Finished
from .focus import Focus
from .interval import Interval
from .none import NoCache
from .prefix import Prefix
from .settled import Settled
from .sliding import Sliding

__all__ = [
    "CACHES",
    "NO_CANVAS",
    "Block",
    "CachePolicy",
    "Canvas",
    "Compact",
    "ComputeRange",
    "Focus",
    "NoCache",
    "Progress",
    "RequestExtent",
    "StepConfidence",
]

_POLICIES: tuple[type[CachePolicy], ...] = (
    NoCache,
    Prefix,
    Dual,
    Compact,
    Block,
    D2,
    Delayed,
    Dsb,
    Elastic,
    EntropyCache,
    Finished,
    Focus,
    Interval,
    Settled,
    Sliding,
)
CACHES: Mapping[str, type[CachePolicy]] = {policy.NAME: policy for policy in _POLICIES}
