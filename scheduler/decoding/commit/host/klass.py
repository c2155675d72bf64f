"""KLASS: a token commits once it is certain and its distribution has stopped moving."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from ...params import Choice, Params, Range, Values
from ..base import (
    Bools,
    CommitDecision,
    HostRuleDefaults,
    LaneSlice,
    StepView,
    top,
)
from ..shared.history import LIKELY, History
from ..shared.schedule import Schedule


class Klass(HostRuleDefaults):
    """An open position is ready if its token has more than `threshold` probability and each of its last `history`
    calls moved its distribution by less than `kl_threshold` nats (KL from the call before). All that are ready commit;
    in the leftmost lane, if none is, as many of the most probable as an even schedule of `steps` calls owes.

    Source: arXiv 2511.05664; shkim0116/KLASS src/model/llada_klass.py. The authors keep the whole distribution of every
    position; here it is a sketch (`history`), which gives the same tokens in the same calls in the golden outputs. They
    follow all of the canvas from the first call on, and nothing is ready in the first `history - 1` calls of a block:
    `watch` "canvas". With "lanes" only what is computed anyway is followed, and only its history counts. With fewer
    steps than tokens their blocks may end with masks; here a lane goes on until it has none.
    """

    PARAMS: Mapping[str, Values] = {
        "kl_threshold": Range(0.0, 100.0),
        "history": Range(1, 16, whole=True),
        "watch": Choice(("lanes", "canvas")),
    }
    ranks = LIKELY

    def __init__(self, threshold: float, kl_threshold: float, stable_calls: int, schedule: Schedule) -> None:
        self._threshold, self._kl_threshold, self._stable_calls = threshold, kl_threshold, stable_calls
        self._schedule = schedule
        self._history: History | None = None

    @classmethod
    def of(cls, knobs: Params, length: int) -> Self:
        judge = cls(
            knobs.number("threshold"),
            knobs.number("kl_threshold"),
            knobs.integer("history"),
            Schedule.of(knobs, length),
        )
        judge.sees_ahead = knobs["watch"] == "canvas"
        return judge

    def choose(self, view: StepView) -> CommitDecision:
        history = self._history = self._history or History(len(view.canvas), self._stable_calls + 1)
        history.add(view)
        chosen = np.zeros(len(view.positions), np.bool_)
        for part in view.lane_slices:
            chosen[part.here] = self._ready(part, view, history)
        return view.commit(chosen)

    def _ready(self, part: LaneSlice, view: StepView, history: History) -> Bools:
        here = part.here
        open_ = view.open[here]
        ready = open_ & (view.confidence[here] > self._threshold)
        if self.sees_ahead and part.lane.steps < self._stable_calls - 1:
            ready[:] = False
        at = np.flatnonzero(ready)
        if len(at):
            ages = np.arange(self._stable_calls)
            moved = history.divergence(view.positions[here][at], ages, ages + 1)
            ready[at] = (moved < self._kl_threshold).all(0)
        if part.first and not ready.any():
            ready[top(view.confidence[here], open_, self._schedule.due(part.lane.steps))] = True
        return ready
