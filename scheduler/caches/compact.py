"""AsyncLane's compact cache: a step starts where settled positions end and stops at the look-ahead.

A position settles once a step has computed it with its final token: keys and values of the step that committed it
are those of a mask. Every few finished lanes a refresh starts at 0; its logits drive that step, so it is no extra
call. The unused tail of the canvas is never computed.
"""

from __future__ import annotations

from .base import Reach, Window


class Compact:
    def __init__(self, refresh_every: int) -> None:
        """`refresh_every` finished lanes; 0 never refreshes."""
        self._refresh_every = refresh_every
        self._settled = 0
        self._finished = 0

    def window(self, reach: Reach) -> Window:
        due = 0 < self._refresh_every <= self._finished
        return Window(0 if due else self._settled, reach.end, reach.end, refresh=due)

    def computed(self, window: Window, reach: Reach, finished: int) -> None:
        self._finished = (0 if window.refresh else self._finished) + finished
        self._settled = reach.frontier
