"""LoPA: looks a token ahead along several orders of filling, and goes on along the one that leaves it most certain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np

from ...params import Params, Range, Values
from ..base import StepView, top
from ..shared.speculation import Branching, Speculator, extended


class LoPA(Speculator):
    """Of `branches` rows in a step the first is the canvas, the anchor; in each other one more of the likeliest open
    positions of its block is filled. A row's worth is `creation_weight` times the confidence with which that position
    was filled (1 for the anchor), plus the rest of 1 times the mean of the `lowest_share` least confident of all masks
    that the row still has. From the worthiest row, the anchor if they are equals, commits what has the `threshold`, or
    else the best. Source: arXiv 2512.16229; zhijie-group/LoPA, the loop for Dream without D2F.

    The authors compute every row whole, so the worth looks at the masks behind the block too: `cache: "none"` or
    "prefix". With "dual", the default, a row is the block. Their comparison with the threshold is strict. Under a
    grammar there are no branches; log-probabilities are refused, since a token that a branch was made with has none of
    the step that keeps it.
    """

    sees_ahead = True
    PARAMS: Mapping[str, Values] = {
        "branches": Range(1, 8, whole=True),
        "creation_weight": Range(0.0, 1.0),
        "lowest_share": Range(0.0, 1.0),
    }

    def __init__(self, branches: int, threshold: float, creation_weight: float, lowest_share: float) -> None:
        super().__init__()
        self._branches, self._threshold = branches, threshold
        self._creation_weight, self._lowest_share = creation_weight, lowest_share
        self._created = [1.0]  # with which confidence each row of the next step was made

    @classmethod
    def of(cls, knobs: Params, length: int) -> Self:
        weights = knobs.number("creation_weight"), knobs.number("lowest_share")
        return cls(knobs.integer("branches"), knobs.number("threshold"), *weights)

    @staticmethod
    def beside(knobs: Params) -> int:
        return knobs.integer("branches") - 1

    def choose_among(self, branches: Sequence[StepView]) -> Branching:
        worth = [self._worth(branch, created) for branch, created in zip(branches, self._created, strict=False)]
        winner = int(np.argmax(worth))
        won = branches[winner]
        tokens = won.commit(won.at_least(won.confidence, self._threshold)).tokens
        block = np.zeros(len(tokens), np.bool_)
        block[won.lane_slices[0].here] = True
        order = top(won.confidence, block & (tokens == won.mask_id), self._branches - 1)
        self.drafts = [extended(won, tokens, order[at : at + 1]) for at in range(len(order))]
        self._created = [1.0, *won.confidence[order].tolist()]
        return Branching(tokens, np.full(len(tokens), winner))

    def _worth(self, branch: StepView, created: float) -> float:
        left = np.sort(branch.confidence[branch.open])
        lowest = left[: max(1, int(len(left) * self._lowest_share))]
        future = float(lowest.mean()) if len(left) else 1.0
        return self._creation_weight * created + (1.0 - self._creation_weight) * future
