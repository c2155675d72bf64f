"""Editing: committed tokens are replaced where the network has come to prefer another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from ...lane_tree import Lane
from ...params import Params, Range
from ..base import CommitDecision, HostCommitRule, StepView


class Editing(HostCommitRule):
    """Open positions of `threshold` confidence commit, or else the best. In the same forward each committed position of
    the block takes the network's best token if it is another one with more than `edit_threshold` probability. A full
    block stays until a forward changes nothing, or for `edit_steps` forwards. `threshold` 0.7 and `edit_threshold` 0.5
    are the authors' quality mode, 0.5 and 0 their fast mode.

    Source: LLaDA2.1, arXiv 2602.08676, as in SGLang's joint_threshold.py. Two things differ: the last forward of a
    block may still edit, where SGLang spends one more to find that its budget is spent; and a token that repeats the
    one before it is not penalized.
    """

    NAME = "editing"
    SOURCE = "arXiv 2602.08676; SGLang joint_threshold.py, with the differences that `Editing` names"
    DEFAULTS = {"threshold": 0.7, "edit_threshold": 0.5, "edit_steps": 16}
    PARAMS = {"edit_threshold": Range(0.0, 1.0), "edit_steps": Range(0, 4096, whole=True)}
    revises = True

    def __init__(self, params: Params, length: int) -> None:
        self._threshold, self._edit_threshold = params.number("threshold"), params.number("edit_threshold")
        self._edit_steps = params.integer("edit_steps")
        self._block, self._spent = -1, 0  # the lane, and its forwards since it was full

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        before, open_, requests, lanes = view.canvas_tokens, view.open, view.requests, view.lanes.lanes
        spent = np.array([rule._forwards_full(lane) for rule, lane in zip(rules, lanes, strict=True)])
        spent += ~requests.any(open_)
        edit_steps = np.array([rule._edit_steps for rule in rules])
        threshold = view.each([rule._threshold for rule in rules])
        edit_threshold = view.each([rule._edit_threshold for rule in rules])
        chosen = view.at_least(view.confidence, threshold)
        edits = ~open_ & (view.confidence > edit_threshold) & (view.tokens != before)
        chosen |= edits & view.each(edit_steps > 0)
        stays = ~requests.any(open_ & ~chosen) & requests.any(chosen) & (spent < edit_steps)
        for rule, lane, forwards in zip(rules, lanes, spent.tolist(), strict=True):
            rule._block, rule._spent = lane.id, forwards
        return CommitDecision(np.where(chosen, view.tokens, before), stays=stays)

    def _forwards_full(self, lane: Lane) -> int:
        """The forwards of a lane since it was full, before this one."""
        return self._spent if lane.id == self._block else 0
