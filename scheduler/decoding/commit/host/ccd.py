"""CCD: what was likely a forward ago and still is commits, beyond the quota of a schedule."""

from __future__ import annotations

import numpy as np

from ....contract import Ints
from ...lane_tree import Lane
from ...params import Params, Range
from ..base import Bools, CommitDecision, HostCommitRule, Longs, StepView, top
from ..shared.schedule import Schedule

NOTHING = -1
FEW = 0.1  # share of a lane's masks below which the buffer is narrow again


class Ccd(HostCommitRule):
    """Positions are ranked by entropy, lowest first. After each forward the best that are still open are remembered
    with their tokens: one at first, one more in each forward from `warmup` on, up to 1 + `buffer` times the quota of an
    even schedule of `steps` forwards, and at most two once a tenth of the lane is left. If among equally many of the
    best a forward finds at least its quota of remembered positions with the same token, all of these commit; otherwise
    the best, as many as the quota.

    Source: arXiv 2512.02044; tonyckc/CCD-DLM-code model.py with `seek_mode`, which is for Dream and one block. The
    paper's average over several forwards is not in that code, and not here. Here each lane has a memory of its own,
    while the warm-up is the request's; `block_length` 4096 makes the canvas one block. The quota is even here, where
    Dream's first and last forward differ.
    """

    NAME = "ccd"
    SOURCE = "arXiv 2512.02044; tonyckc/CCD-DLM-code model.py"
    DEFAULTS = {"steps": None, "warmup": 5, "buffer": 4.0}
    PARAMS = {"warmup": Range(0, 4096, whole=True), "buffer": Range(0.0, 64.0)}

    def __init__(self, params: Params, length: int) -> None:
        self._schedule = Schedule.of(params, length)
        self._warmup, self._buffer = params.integer("warmup"), params.number("buffer")
        self._remembered: Ints = np.full(length, NOTHING, np.int32)

    def choose(self, view: StepView) -> CommitDecision:
        chosen = view.nothing()
        for lane, here, _ in view.lane_slices:
            chosen[here] = self._chosen(lane, here, view)
        return view.commit(chosen)

    def _chosen(self, lane: Lane, here: slice, view: StepView) -> Bools:
        quota = self._schedule.quota(lane.steps)
        tokens, positions, open_ = view.tokens[here], view.positions[here], view.open[here]
        ranked = top(-view.entropy[here], open_)
        width = self._width(view.step, quota, len(ranked) <= FEW * len(open_))
        again = ranked[:width][self._remembered[positions[ranked[:width]]] == tokens[ranked[:width]]]
        enough = view.step >= self._warmup and len(again) >= quota
        chosen = np.zeros(len(open_), np.bool_)
        chosen[again if enough else ranked[:quota]] = True
        self._remember(positions, tokens, ranked[~chosen[ranked]][:width])
        return chosen

    def _width(self, step: int, quota: int, few: bool) -> int:
        """How many positions are remembered: one until the last forward of the warm-up, which begins to widen it."""
        width = min(step - self._warmup + 3, quota + int(quota * self._buffer))
        return max(1, min(width, 2) if few else width)

    def _remember(self, positions: Ints, tokens: Ints, best: Longs) -> None:
        self._remembered[positions] = NOTHING
        self._remembered[positions[best]] = tokens[best]
