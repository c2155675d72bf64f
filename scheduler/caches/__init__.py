"""Third axis of a decoder: which range a step computes, and which keys it sees.

All caches are one mechanism, a row `[start, end)` whose keys and values are written in place and whose queries see
`[0, visible)`; they differ in where the row starts and ends.
"""

from .base import CachePolicy, Progress, Reach, Window
from .compact import Compact
from .dual import Dual
from .none import NoCache
from .prefix import Prefix

__all__ = ["CachePolicy", "Compact", "Dual", "NoCache", "Prefix", "Progress", "Reach", "Window"]
