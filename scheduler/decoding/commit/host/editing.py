"""Editing: what has committed is replaced where the network has come to say something else.

Source: LLaDA2.1, arXiv 2602.08676; as in SGLang's joint_threshold.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from ...params import Params, Range, Values
from ..base import CommitDecision, HostRuleDefaults, StepView


class Editing(HostRuleDefaults):
    """Open positions of `threshold` confidence commit, or else the best. In the same call each committed position of
    the block takes the network's best token if that is another one, more probable than `edit_threshold`. A block that
    is full stays until a call changes nothing, or for `edit_steps` calls. `threshold` 0.7 and `edit_threshold` 0.5 are
    the authors' quality mode, 0.5 and 0 their speedy one.

    It differs from SGLang's in two ways: a block's last call may still edit, where that one spends a call more to see
    that its budget is spent; and there is no penalty on repeating the token before.
    """

    PARAMS: Mapping[str, Values] = {
        "edit_threshold": Range(0.0, 1.0),
        "edit_steps": Range(0, 4096, whole=True),
    }

    revises = True

    def __init__(self, threshold: float, edit_threshold: float, edit_steps: int) -> None:
        self._threshold, self._edit_threshold, self._edit_steps = threshold, edit_threshold, edit_steps
        self._block, self._spent = -1, 0  # the lane, and its calls since it was full

    @classmethod
    def of(cls, knobs: Params, length: int) -> Self:
        return cls(knobs.number("threshold"), knobs.number("edit_threshold"), knobs.integer("edit_steps"))

    def choose(self, view: StepView) -> CommitDecision:
        (part,) = view.lane_slices
        if part.lane.id != self._block:
            self._block, self._spent = part.lane.id, 0
        held, open_ = view.canvas_tokens, view.open
        self._spent += not open_.any()
        chosen = view.at_least(view.confidence, self._threshold)
        if self._edit_steps:
            sure = view.confidence > self._edit_threshold
            chosen |= ~open_ & sure & (view.tokens != held)
        full = not (open_ & ~chosen).any()
        return CommitDecision(
            np.where(chosen, view.tokens, held),
            stays=full and bool(chosen.any()) and self._spent < self._edit_steps,
        )
