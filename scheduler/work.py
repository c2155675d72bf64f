"""What the step in flight computes of one request."""

from __future__ import annotations

from dataclasses import dataclass

from .caches import Reach, Window
from .contract import Row
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Work:
    """What a step computes, and what its commit needs to know.

    `open` counts the masks before the step, of a request that adapts to the load.
    """

    sequence: Sequence
    window: Window
    reach: Reach
    rows: tuple[Row, ...]
    open: int

    @property
    def tokens(self) -> int:
        return sum(row.tokens for row in self.rows)
