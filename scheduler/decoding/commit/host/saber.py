"""Saber: commits faster the surer it has been, and takes back what the network believes less since.

Source: arXiv 2510.18165; zhaoyMa/Saber decoding.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Self

import numpy as np

from ....contract import Doubles, Ints, Measure
from ...params import Choice, Params, Range, Values
from ..base import (
    Bools,
    CommitDecision,
    HostRuleDefaults,
    Longs,
    StepView,
    top,
)
from ..shared import torch_order

SHARE = 8  # one position in so many commits is taken back


class Saber(HostRuleDefaults):
    """Open positions commit whose confidence is above the mean of all commits so far, or else the `at_least` best. Then
    an eighth as many, and half of `at_least` if that is more, are taken back: the committed positions of the block
    whose best token has lost most probability since the call before. A block that is full is over.

    The published code computes confidence in float32, in which many positions are equally certain: the mean then is 1,
    which nothing exceeds. So does `precision` "single", of equals the leftmost first. That code leaves the order of
    equals, and of the mean's sum, to torch; `precision` "torch" follows it there, as it is on a CPU with AVX2, and so
    gives its tokens in its calls, in one block, which is the default. With more of them it differs: blocks before the
    current one are final, where that code takes tokens back in all of them; and a position of the prompt, which that
    code may commit beside a block's last mask, counts in no mean. A mean of more than 512 torch sums by parts, which is
    refused. On a GPU confidence is rounded to float32, so its last bit may be another than torch's.
    """

    PARAMS: Mapping[str, Values] = {
        "at_least": Range(2, 64, whole=True),
        "precision": Choice(("single", "double", "torch")),
    }

    revises = True

    def __init__(self, at_least: int, precision: str, length: int) -> None:
        self._at_least, self._as_torch = at_least, precision == "torch"
        self._float: type[np.floating[Any]] = np.float64 if precision == "double" else np.float32
        self.measure = Measure.ENTROPY if precision == "double" else Measure.SINGLE
        self._believed = np.zeros(length)  # the best token's probability in the call before
        self._committed = np.full(length, np.nan)  # confidence at the latest commit

    @classmethod
    def of(cls, knobs: Params, length: int) -> Self:
        precision, most = knobs.text("precision"), torch_order.MOST
        few = precision != "torch" or length <= most
        knobs.require("precision", few, f"is for canvases of {most} (max_tokens) at most")
        return cls(knobs.integer("at_least"), precision, length)

    def choose(self, view: StepView) -> CommitDecision:
        tokens, (part,) = view.canvas_tokens.copy(), view.lane_slices
        confidence = self._rounded(view.confidence[part.here])
        positions, open_ = view.positions[part.here], view.open[part.here]
        pick = partial(_as_torch, view, positions) if self._as_torch else top
        drop = self._rounded(confidence - self._believed[positions])
        self._believed[positions] = confidence
        chosen: Bools = open_ & (confidence > self._bar())
        if chosen.sum() < self._at_least:
            chosen[pick(confidence, open_, self._at_least)] = True
        self._committed[positions[chosen]] = confidence[chosen]
        tokens[part.here][chosen] = view.tokens[part.here][chosen]
        stands = ~open_ | chosen
        if not stands.all():
            tokens[part.here][pick(-drop, stands, self._withdrawn(int(chosen.sum())))] = view.mask_id
        return CommitDecision(tokens)

    def _rounded(self, values: Doubles) -> Doubles:
        return values.astype(self._float).astype(np.float64)

    def _bar(self) -> float:
        """Above which positions commit."""
        known = self._committed[~np.isnan(self._committed)]
        if not len(known):
            return 1.0
        return float((torch_order.mean if self._as_torch else np.mean)(known.astype(self._float)))

    def _withdrawn(self, commits: int) -> int:
        """How many are taken back where so many commit."""
        count = max(self._at_least, commits)
        return min(max(self._at_least // 2, -(-count // SHARE)), count - 1)


def _as_torch(view: StepView, positions: Ints, score: Doubles, among: Bools, count: int) -> Longs:
    """As `top`, where the lane is `positions` [n]: in torch's order, which depends on where in the row of prompt and
    canvas they lie. Where there are less than `count`, others are picked too."""
    row = np.full(view.prompt + len(view.canvas), -np.inf)
    places = view.prompt + positions
    row[places[among]] = score[among]
    return np.flatnonzero(np.isin(places, torch_order.topk(row, count)))
