"""Explore then exploit: where certainty runs dry, one uncertain position is decided so that others follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from ...params import Params, Range, Values
from ..base import CommitDecision, HostRuleDefaults, StepView, best


class ExploreThenExploit(HostRuleDefaults):
    """Exploit: every open position of `threshold` confidence commits, and behind the lanes, across blocks, of
    `ahead_threshold`, but no end token there. Explore: a call in which fewer than `least` positions pass also decides
    the one that tells most, the open position of the leftmost lane with the highest entropy among those of
    `explore_threshold` confidence at least, hoping that others follow from it in the next call. The best commits in
    any case.

    Source of the idea: arXiv 2511.21103, of which the abstract alone was at hand: rounds are bounded below by the
    information in the answer over that of a round, so uncertain positions are worth deciding early, and commits cross
    blocks. The rule and its numbers are ours.
    """

    PARAMS: Mapping[str, Values] = {
        "ahead_threshold": Range(0.0, 1.0),
        "explore_threshold": Range(0.0, 1.0),
        "least": Range(0, 4096, whole=True),
    }
    sees_ahead = True

    def __init__(self, threshold: float, ahead: float, explore: float, least: int) -> None:
        self._threshold, self._ahead, self._explore, self._least = threshold, ahead, explore, least

    @classmethod
    def of(cls, knobs: Params, length: int) -> Self:
        ahead, explore = knobs.number("ahead_threshold"), knobs.number("explore_threshold")
        return cls(knobs.number("threshold"), ahead, explore, knobs.integer("least"))

    def choose(self, view: StepView) -> CommitDecision:
        confidence, open_ = view.confidence, view.open
        chosen = view.at_least(confidence, self._threshold)
        for here in (part.here for part in view.lane_slices if part.first):
            if chosen[here].sum() >= self._least:
                continue
            telling = open_[here] & ~chosen[here] & (confidence[here] >= self._explore)
            telling &= np.isfinite(view.entropy[here])
            if telling.any():
                chosen[here.start + best(view.entropy[here], telling)] = True
        ahead = open_ & (confidence >= self._ahead) & ~view.ends[view.tokens]
        ahead[view.lanes] = False
        chosen |= ahead
        return view.commit(chosen)
