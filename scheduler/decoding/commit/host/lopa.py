"""LoPA: tries several orders of filling one token ahead, and goes on along the one that leaves most confidence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...params import Params, Range
from ..base import StepView, top
from ..shared.speculation import Branching, Speculator, extended


class LoPA(Speculator):
    """The first of the `branches` rows of a step is the canvas, the anchor; each other one fills one more of the
    likeliest open positions of its block. A row's worth is `creation_weight` times the confidence with which that
    position was filled (1 for the anchor), plus 1 - `creation_weight` times the mean confidence of the `lowest_share`
    least confident of all masks that the row still has. From the row of most worth, the anchor if equal, commits what
    has the `threshold`, or else the best. Source: arXiv 2512.16229; zhijie-group/LoPA, the loop for Dream without D2F.

    The authors compute every row whole, so the worth includes the masks after the block: `cache: "none"` or "prefix".
    With "dual", the default, a row is the block. Their comparison with the threshold is strict. With a grammar there
    are no branches; log-probabilities are refused, since the token that a branch was made with has no probability in
    the step that keeps it.
    """

    NAME = "lopa"
    SOURCE = "arXiv 2512.16229; zhijie-group/LoPA"
    DEFAULTS = {"threshold": 0.9, "branches": 4, "creation_weight": 0.5, "lowest_share": 0.5}
    PARAMS = {"branches": Range(1, 8, whole=True), "creation_weight": Range(0.0, 1.0), "lowest_share": Range(0.0, 1.0)}
    rows_param = "branches"
    scored = False
    sees_ahead = True

    def __init__(self, params: Params, length: int) -> None:
        super().__init__(params, length)
        self._branches, self._threshold = params.integer("branches"), params.number("threshold")
        self._creation_weight, self._lowest_share = params.number("creation_weight"), params.number("lowest_share")
        self._created = [1.0]  # the confidence with which each row of the next step was made

    def choose_among(self, branches: Sequence[StepView]) -> Branching:
        worth = [self._worth(branch, created) for branch, created in zip(branches, self._created, strict=False)]
        winner = int(np.argmax(worth))
        won = branches[winner]
        tokens = won.commit(won.at_least(won.confidence, self._threshold)).tokens
        block = won.lanes.spread(won.lanes.leftmost, outside=False)
        order = top(won.confidence, block & (tokens == won.mask_id), self._branches - 1)
        self.drafts = [extended(won, tokens, order[at : at + 1]) for at in range(len(order))]
        self._created = [1.0, *won.confidence[order].tolist()]
        return Branching(tokens, np.full(len(tokens), winner))

    def _worth(self, branch: StepView, created: float) -> float:
        left = np.sort(branch.confidence[branch.open])
        lowest = left[: max(1, int(len(left) * self._lowest_share))]
        future = float(lowest.mean()) if len(left) else 1.0
        return self._creation_weight * created + (1.0 - self._creation_weight) * future
