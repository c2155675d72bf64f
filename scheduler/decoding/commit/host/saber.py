"""Saber: commits more the more confident it has been, and takes back what has lost most probability since."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Self

import numpy as np

from ....contract import Doubles, Measure
from ...params import Choice, Params, Range
from ..base import CommitDecision, HostCommitRule, StepView
from ..segments import Bools

SHARE = 8  # one position in so many commits is taken back


class Saber(HostCommitRule):
    """Open positions commit whose confidence is above the mean of all commits so far, or else the `at_least` best. Then
    an eighth as many, but at least half of `at_least`, are taken back: the committed positions of the block whose best
    token has lost most probability since the forward before. A full block is over.

    Source: arXiv 2510.18165; zhaoyMa/Saber decoding.py. That code computes confidence in float32, in which many
    positions are equal at 1; the mean is then 1, which nothing exceeds. `precision` "single" does the same. Two things
    differ. Of equal positions the leftmost counts first, and the mean is numpy's sum, where that code leaves both to
    torch: where such a tie decides, tokens differ. With several blocks, those before the current one are final, where
    that code takes tokens back in all of them; and it may commit a position of the prompt beside a block's last mask,
    which counts in no mean here. On a GPU confidence is rounded to float32, so its last bit may differ from torch's.
    """

    NAME = "saber"
    SOURCE = "arXiv 2510.18165; zhaoyMa/Saber decoding.py"
    DEFAULTS = {"at_least": 2, "precision": "single"}
    PARAMS = {"at_least": Range(2, 64, whole=True), "precision": Choice(("single", "double"))}
    revises = True

    @property
    def kind(self) -> Hashable:
        return self.measure

    def __init__(self, params: Params, length: int) -> None:
        self._at_least, double = params.integer("at_least"), params["precision"] == "double"
        self._float: type[np.float32 | np.float64] = np.float64 if double else np.float32
        self.measure = Measure.ENTROPY if double else Measure.SINGLE
        self._believed = np.zeros(length)  # the best token's probability in the forward before
        self._committed = np.full(length, np.nan)  # confidence at the latest commit
        self._end = 0  # of what has committed

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        lanes, open_ = view.lanes, view.open & view.lanes.inside
        rounded, mean = rules[0]._rounded, np.array([rule._mean() for rule in rules])
        at_least = np.array([rule._at_least for rule in rules])
        kept_beliefs, kept_commits = [rule._believed for rule in rules], [rule._committed for rule in rules]
        believed, committed = view.gather(kept_beliefs), view.gather(kept_commits)
        confidence = rounded(view.confidence)
        drop = rounded(confidence - believed)
        chosen: Bools = open_ & (confidence > view.each(mean))
        few = lanes.count(chosen) < at_least[lanes.owner]
        chosen |= lanes.top(confidence, open_, np.where(few, at_least[lanes.owner], 0))
        filled = ~open_ | chosen
        commits = lanes.count(chosen)
        count = np.maximum(at_least[lanes.owner], commits)
        withdrawn = np.minimum(np.maximum(at_least[lanes.owner] // 2, -(-count // SHARE)), count - 1)
        withdrawn[~lanes.any(~filled)] = 0  # a full block is over
        back = lanes.top(-drop, filled & lanes.inside, withdrawn)
        for rule, here in zip(rules, view.ranges.slices, strict=True):
            rule._end = max(rule._end, here.stop)
        view.scatter(kept_beliefs, np.where(lanes.inside, confidence, believed))
        view.scatter(kept_commits, np.where(chosen, confidence, committed))
        tokens = np.where(chosen, view.tokens, view.canvas_tokens)
        return CommitDecision(np.where(back, view.mask_id, tokens))

    def _rounded(self, values: Doubles) -> Doubles:
        return values.astype(self._float).astype(np.float64)

    def _mean(self) -> float:
        """The mean confidence of all commits, 1 before the first."""
        last = self._committed[: self._end]
        known = last[~np.isnan(last)].astype(self._float)
        return float(np.add.reduce(known) / len(known)) if len(known) else 1.0
