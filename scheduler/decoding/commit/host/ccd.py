"""CCD: what was likely a call ago and still is commits, beyond what a schedule of calls owes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from ....contract import Ints
from ...params import Params, Range, Values
from ..base import (
    Bools,
    CommitDecision,
    HostRuleDefaults,
    LaneSlice,
    Longs,
    StepView,
    top,
)
from ..shared.schedule import Schedule

NOTHING = -1
FEW = 0.1  # share of a lane's masks below which the buffer is narrow again


class Ccd(HostRuleDefaults):
    """Positions are ranked by entropy, lowest first. After each call the best that are still open are remembered with
    their tokens: one of them at first, one more in each call from `warmup` on, up to 1 + `buffer` times what an even
    schedule of `steps` calls owes, and few again once a tenth of the lane is left. A call that finds among as many of
    the now best some that were remembered with the same token commits all of these, if they are what it owes or more;
    otherwise the best that it owes.

    Source: arXiv 2512.02044; tonyckc/CCD-DLM-code model.py with `seek_mode`, which is for Dream and one block: the
    paper's average over several calls is not in the code, and not here. There each lane has a memory of its own while
    the warm-up is the request's; `block_length` 4096 makes the canvas one block. Of the authors' it differs in its
    count of calls, which is even, where Dream's first and last call are odd.
    """

    PARAMS: Mapping[str, Values] = {
        "warmup": Range(0, 4096, whole=True),
        "buffer": Range(0.0, 64.0),
    }

    def __init__(self, schedule: Schedule, warmup: int, buffer: float, length: int) -> None:
        self._schedule, self._warmup, self._buffer = schedule, warmup, buffer
        self._remembered: Ints = np.full(length, NOTHING, np.int32)

    @classmethod
    def of(cls, knobs: Params, length: int) -> Self:
        return cls(Schedule.of(knobs, length), knobs.integer("warmup"), knobs.number("buffer"), length)

    def choose(self, view: StepView) -> CommitDecision:
        chosen = np.zeros(len(view.positions), np.bool_)
        for part in view.lane_slices:
            chosen[part.here] = self._chosen(part, view)
        return view.commit(chosen)

    def _chosen(self, part: LaneSlice, view: StepView) -> Bools:
        here, due = part.here, self._schedule.due(part.lane.steps)
        tokens, positions, open_ = view.tokens[here], view.positions[here], view.open[here]
        ranked = top(-view.entropy[here], open_)
        width = self._width(view.step, due, len(ranked) <= FEW * len(open_))
        known = self._remembered[positions] == tokens
        again = ranked[:width][known[ranked[:width]]]
        taken = ranked[:due]
        if view.step >= self._warmup and len(again) >= due:
            taken = again
        chosen = np.zeros(len(open_), np.bool_)
        chosen[taken] = True
        self._remember(positions, tokens, ranked[~chosen[ranked]][:width])
        return chosen

    def _width(self, step: int, due: int, few: bool) -> int:
        """How many positions are remembered: one until the last call of the warm-up, which begins to widen it."""
        width = min(step - self._warmup + 3, due + int(due * self._buffer))
        return max(1, min(width, 2) if few else width)

    def _remember(self, positions: Ints, tokens: Ints, best: Longs) -> None:
        self._remembered[positions] = NOTHING
        self._remembered[positions[best]] = tokens[best]
