"""How fast requests end, from which clients that are refused learn when to come again."""

from __future__ import annotations

import math
import random
from collections import deque

REMEMBERED = 64  # requests
LONGEST_S = 60


class QueueRate:
    """The rate at which the last requests have ended, since the engine last had nothing to do. Times are in seconds."""

    def __init__(self) -> None:
        self._ended_s: deque[float] = deque(maxlen=REMEMBERED)

    def begin(self, now_s: float) -> None:
        self._ended_s.clear()
        self._ended_s.append(now_s)

    def end(self, now_s: float) -> None:
        self._ended_s.append(now_s)

    def retry_after_s(self, waiting: int, now_s: float) -> int:
        """The time until a queue of `waiting` requests has half emptied, or up to twice as long: clients that were
        refused together should not come back together."""
        seconds = now_s - self._ended_s[0] if self._ended_s else 0.0
        expected_s = min(LONGEST_S, waiting * seconds / max(1, len(self._ended_s) - 1))
        return max(1, math.ceil(expected_s * random.uniform(0.5, 1)))
