"""KLASS: a token commits once it is confident and its distribution has stopped moving."""

from __future__ import annotations

import numpy as np

from ...lane_tree import Lane
from ...params import Choice, Params, Range
from ..base import Bools, CommitDecision, HostCommitRule, StepView, top
from ..shared.history import LIKELY, History
from ..shared.schedule import Schedule


class Klass(HostCommitRule):
    """An open position is ready if its token has more than `threshold` probability and each of its last `history`
    forwards moved its distribution by less than `kl_threshold` nats (KL from the forward before). All that are ready
    commit. If none in the leftmost lane is, the most probable there do, as many as the quota of an even schedule of
    `steps` forwards.

    Source: arXiv 2511.05664; shkim0116/KLASS src/model/llada_klass.py. The authors keep the whole distribution of every
    position; here it is a sketch (`history`), which gives the same tokens in the same forwards in the golden outputs.
    They follow the whole canvas from the first forward on, and nothing is ready in the first `history - 1` forwards of
    a block: `watch` "canvas". With "lanes" only what is computed anyway is followed, and only its history counts. With
    fewer steps than tokens their blocks may end with masks; here a lane goes on until it has none.
    """

    NAME = "klass"
    SOURCE = "arXiv 2511.05664; shkim0116/KLASS src/model/llada_klass.py"
    DEFAULTS = {"threshold": 0.9, "kl_threshold": 0.01, "history": 2, "steps": None, "watch": "lanes"}
    PARAMS = {
        "kl_threshold": Range(0.0, 100.0),
        "history": Range(1, 16, whole=True),
        "watch": Choice(("lanes", "canvas")),
    }
    ranks = LIKELY

    def __init__(self, params: Params, length: int) -> None:
        self._threshold, self._kl_threshold = params.number("threshold"), params.number("kl_threshold")
        self._ages = np.arange(params.integer("history"))
        self._schedule = Schedule.of(params, length)
        self._history = History(length, len(self._ages) + 1)
        self.sees_ahead = params["watch"] == "canvas"

    def choose(self, view: StepView) -> CommitDecision:
        self._history.add(view)
        chosen = view.nothing()
        for lane, here, first in view.lane_slices:
            ready = self._ready(lane, here, view)
            if first and not ready.any():
                ready[top(view.confidence[here], view.open[here], self._schedule.quota(lane.steps))] = True
            chosen[here] = ready
        return view.commit(chosen)

    def _ready(self, lane: Lane, here: slice, view: StepView) -> Bools:
        ready = view.open[here] & (view.confidence[here] > self._threshold)
        if self.sees_ahead and lane.steps < len(self._ages) - 1:
            ready[:] = False
        at = np.flatnonzero(ready)
        if len(at):
            moved = self._history.divergence(view.positions[here][at], self._ages, self._ages + 1)
            ready[at] = (moved < self._kl_threshold).all(0)
        return ready
