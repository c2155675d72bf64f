"""Fast-dLLM's dual cache: a full pass when a block starts, then only the block, which sees stale keys on both sides.

Source: arXiv 2505.22618, section 3.2.
"""

from __future__ import annotations

from .base import RequestExtent
from .prefix import Prefix


class Dual(Prefix):
    NAME = "dual"

    def _last(self, extent: RequestExtent) -> int:
        return extent.last
