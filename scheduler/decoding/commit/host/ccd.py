"""CCD: what was likely a forward ago and still is commits, beyond the quota of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from ....contract import Ints
from ...params import Params, Range
from ..base import CommitDecision, HostCommitRule, StepView
from ..segments import Longs
from ..shared.schedule import Schedule, quotas

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

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        lanes, open_, sharpness = view.lanes, view.open, -view.entropy
        due = quotas([rule._schedule for rule in rules], lanes)
        width = cls._widths(rules, view, due)
        kept = [rule._remembered for rule in rules]
        remembered = view.gather(kept)
        again = lanes.top(sharpness, open_, width) & (remembered == view.tokens)
        warm = np.array([rule._warmup for rule in rules]) <= view.steps
        enough = warm[lanes.owner] & (lanes.count(again) >= due)
        chosen = np.where(lanes.spread(enough), again, lanes.top(sharpness, open_, due))
        next_best = lanes.top(sharpness, open_ & ~chosen, width)
        inside = np.where(next_best, view.tokens, NOTHING)
        view.scatter(kept, np.where(lanes.inside, inside, remembered))
        return view.commit(chosen)

    @staticmethod
    def _widths(rules: Sequence[Ccd], view: StepView, due: Longs) -> Longs:
        """[lanes] how many positions are remembered: one until the last forward of the warm-up, which begins to widen
        it."""
        lanes, owner = view.lanes, view.lanes.owner
        warmup, buffer = np.array([rule._warmup for rule in rules]), np.array([rule._buffer for rule in rules])
        widest = due + (due * buffer[owner]).astype(np.intp)
        width = np.minimum((view.steps - warmup + 3)[owner], widest)
        few = lanes.count(view.open) <= FEW * lanes.sizes
        found: Longs = np.maximum(1, np.where(few, np.minimum(width, 2), width))
        return found
