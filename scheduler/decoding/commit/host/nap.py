"""NAP: a forward's tokens are divided among the parts of an answer, and go to the most confident positions of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from ...params import Params
from ..base import CommitDecision, HostCommitRule, StepView


class MacroParallel(HostCommitRule):
    """A forward commits `tokens_per_call` tokens, or one in each lane if these are more. The lanes that must commit
    take turns, from the left: each has its most confident open position, then each its second, and so on. A lane with
    fewer masks than its share leaves the rest to the others.

    Source: NAP, pixeli99/NAP README ("macro-parallel, micro-confidence"). Its decoding code is not published: how a
    budget is divided that the number of parts does not divide, or that a part cannot use, is ours.
    """

    NAME = "nap"
    SOURCE = "pixeli99/NAP README, whose decoding code is not published"
    DEFAULTS = {"tokens_per_call": 4}

    def __init__(self, params: Params, length: int) -> None:
        self._tokens = params.integer("tokens_per_call")

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        lanes = view.lanes
        among = view.open & lanes.spread(lanes.forced, outside=False)
        order = np.lexsort((-view.confidence, ~among, lanes.index))  # lane by lane, what lies outside last
        begins = lanes.spread(np.cumsum(lanes.sizes) - lanes.sizes)
        rank = np.empty(len(order))  # in its lane
        rank[order] = np.arange(len(order)) - begins[order]
        filling = np.bincount(lanes.owner[lanes.any(among)], minlength=len(rules))
        count = np.maximum([rule._tokens for rule in rules], filling)
        return view.commit(view.requests.top(-rank, among, count))
