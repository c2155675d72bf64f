"""KLASS: a token commits once it is confident and its distribution has stopped moving."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Self

import numpy as np

from ...params import Choice, Params, Range
from ..base import CommitDecision, HostCommitRule, StepView
from ..shared.history import LIKELY, Histories, History
from ..shared.schedule import Schedule, quotas


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

    @property
    def kind(self) -> Hashable:
        return len(self._ages)

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        lanes, open_, ages = view.lanes, view.open, rules[0]._ages
        due = quotas([rule._schedule for rule in rules], lanes)
        threshold = view.each([rule._threshold for rule in rules])
        kl_threshold = view.each([rule._kl_threshold for rule in rules])
        waits = np.array([rule.sees_ahead for rule in rules])[lanes.owner] & (lanes.steps < len(ages) - 1)
        histories = Histories([rule._history for rule in rules], view)
        histories.add()
        ready = open_ & (view.confidence > threshold) & lanes.spread(~waits, outside=False)
        at = np.flatnonzero(ready)
        if len(at):
            ready[at] = (histories.divergence(at, ages, ages + 1) < kl_threshold[at]).all(0)
        without = lanes.forced & ~lanes.any(ready)
        return view.commit(ready | lanes.top(view.confidence, open_, np.where(without, due, 0)))
