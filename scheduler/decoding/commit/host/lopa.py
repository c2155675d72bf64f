"""LoPA: tries several orders of filling one token ahead, and goes on along the one that leaves most confidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from ....contract import Ints
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

    @classmethod
    def choose_among(cls, rules: Sequence[Self], view: StepView, rows: Sequence[range]) -> list[Branching]:
        each = [rule for rule, own in zip(rules, rows, strict=True) for _ in own]  # of each row
        chosen = view.at_least(view.confidence, view.each([rule._threshold for rule in each]))
        tokens, future = view.commit(chosen).tokens, cls._futures(each, view)
        block = view.lanes.spread(view.lanes.leftmost, outside=False) & (tokens == view.mask_id)
        choices, drafts = list[Branching](), list[tuple[list[Ints], list[float]]]()
        for rule, own in zip(rules, rows, strict=True):
            created, weight = rule._created[: len(own)], rule._creation_weight
            worth = [weight * made + (1.0 - weight) * future[row] for made, row in zip(created, own, strict=False)]
            winner = int(np.argmax(worth))
            here = view.rows(own[winner : winner + 1])
            positions, proposals = view.positions[here], view.tokens[here]
            order = top(view.confidence[here], block[here], rule._branches - 1)
            base = extended(view.canvases[own[winner]], positions, tokens[here])
            made = [extended(base, positions[at : at + 1], proposals[at : at + 1]) for at in order.tolist()]
            drafts.append((made, [1.0, *view.confidence[here][order].tolist()]))
            choices.append(Branching(tokens[here], np.full(len(positions), winner)))
        for rule, (canvases, confidence) in zip(rules, drafts, strict=True):
            rule.drafts, rule._created = canvases, confidence
        return choices

    @staticmethod
    def _futures(rules: Sequence[LoPA], view: StepView) -> list[float]:
        """The mean confidence of the least confident masks of each row of the view, which belongs to one of `rules`
        [rows]."""
        left = view.requests.count(view.open)
        lowest = np.maximum(1, (left * np.array([rule._lowest_share for rule in rules])).astype(np.intp))
        rising = -view.requests.falling(-view.confidence, view.open)
        means = zip(rising, left.tolist(), lowest.tolist(), strict=True)
        return [float(np.add.reduce(row[:some]) / some) if masks else 1.0 for row, masks, some in means]
