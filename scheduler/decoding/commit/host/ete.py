"""Explore then exploit: where little is certain, one uncertain position is decided so that others follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from ...params import Params, Range
from ..base import CommitDecision, HostCommitRule, StepView
from ..segments import NONE


class ExploreThenExploit(HostCommitRule):
    """Exploit: every open position of `threshold` confidence commits, and after the lanes, across blocks, every one of
    `ahead_threshold`, except end tokens. Explore: a forward in which fewer than `least` positions pass also commits the
    open position of the leftmost lane with the highest entropy among those of at least `explore_threshold` confidence,
    since others may follow from it. The best always commits.

    Source of the idea: arXiv 2511.21103, of which only the abstract was available: the number of rounds is at least the
    information in the answer over that of a round, so uncertain positions are worth deciding early, and commits cross
    blocks. The rule and its numbers are ours.
    """

    NAME = "ete"
    SOURCE = "after arXiv 2511.21103: its idea; the rule is ours"
    DEFAULTS = {"threshold": 0.9, "ahead_threshold": 0.95, "explore_threshold": 0.6, "least": 2}
    PARAMS = {
        "ahead_threshold": Range(0.0, 1.0),
        "explore_threshold": Range(0.0, 1.0),
        "least": Range(0, 4096, whole=True),
    }
    sees_ahead = True

    def __init__(self, params: Params, length: int) -> None:
        self._threshold, self._ahead = params.number("threshold"), params.number("ahead_threshold")
        self._explore, self._least = params.number("explore_threshold"), params.integer("least")

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        confidence, open_, lanes = view.confidence, view.open, view.lanes
        chosen = view.at_least(confidence, view.each([rule._threshold for rule in rules]))
        least = np.array([rule._least for rule in rules])[lanes.owner]
        few = lanes.forced & (lanes.count(chosen) < least)
        uncertain = open_ & ~chosen & (confidence >= view.each([rule._explore for rule in rules]))
        explored = lanes.best(view.entropy, uncertain & np.isfinite(view.entropy))[few]
        chosen[explored[explored != NONE]] = True
        after = np.flatnonzero(~lanes.inside & open_)
        sure = confidence[after] >= view.each([rule._ahead for rule in rules])[after]
        chosen[after] = sure & ~view.ends[view.tokens[after]]
        return view.commit(chosen)
