"""CAD: as many confident positions as a student of CD4LM was trained to fill at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from ...params import Params, Range
from ..base import CommitDecision, HostCommitRule, StepView


class Cad(HostCommitRule):
    """Open positions of a lane with `threshold` confidence commit, best first, at most `most_tokens` in a forward.
    Where none has it in the leftmost lane, its best commits. While less than the share `ends_from` of the canvas is
    committed, a position at which an end token is proposed waits as long as others are open.

    Source: CD4LM, arXiv 2601.02236; yihao-liang/CDLM scripts/LLaDA_generate_dynamic.py, whose threshold is 0.8 by
    default, 0.95 in the paper. If all open positions wait, the leftmost commits, where the authors' code leaves the
    choice to torch.
    """

    NAME = "cad"
    SOURCE = "arXiv 2601.02236; yihao-liang/CDLM"
    DEFAULTS = {"threshold": 0.95, "most_tokens": 4, "ends_from": 0.5}
    PARAMS = {"most_tokens": Range(1, 4096, whole=True), "ends_from": Range(0.0, 1.0)}

    def __init__(self, params: Params, length: int) -> None:
        self._threshold, self._ends_from = params.number("threshold"), params.number("ends_from")
        self._most_tokens = params.integer("most_tokens")

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        lanes, open_ = view.lanes, view.open
        early = [
            np.count_nonzero(canvas != view.mask_id) < rule._ends_from * len(canvas)
            for rule, canvas in zip(rules, view.canvases, strict=True)
        ]
        waits = view.ends[view.tokens] & view.each(early)
        score = np.where(waits, -1.0, view.confidence)
        passing = lanes.count(open_ & (score >= view.each([rule._threshold for rule in rules])))
        most = np.array([rule._most_tokens for rule in rules])[lanes.owner]
        count = np.minimum(np.maximum(passing, lanes.forced), most)
        return view.commit(lanes.top(score, open_, count))
