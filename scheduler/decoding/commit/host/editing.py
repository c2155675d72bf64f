"""Editing: committed tokens are replaced where the network has come to prefer another."""

from __future__ import annotations

import numpy as np

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

    def choose(self, view: StepView) -> CommitDecision:
        ((lane, _, _),) = view.lane_slices
        if lane.id != self._block:
            self._block, self._spent = lane.id, 0
        before, open_ = view.canvas_tokens, view.open
        self._spent += not open_.any()
        chosen = view.at_least(view.confidence, self._threshold)
        if self._edit_steps:
            chosen |= ~open_ & (view.confidence > self._edit_threshold) & (view.tokens != before)
        full = not (open_ & ~chosen).any()
        stays = full and bool(chosen.any()) and self._spent < self._edit_steps
        return CommitDecision(np.where(chosen, view.tokens, before), stays=stays)
