"""DEER: an autoregressive network checks, from left to right, what a network that fills masks has drafted at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from ....contract import Ints, Measure
from ...lane_tree import Layout
from ...params import Params
from ..base import CommitDecision, HostCommitRule, StepView


class Deer(HostCommitRule):
    """A forward of the drafter proposes tokens for all positions of the lane but the last. The next forward, of the
    served network, reads them after the last token, and so finds its own token for each of these positions and for the
    one after them. From the left on its tokens commit, up to the first one that differs from the draft, or all of
    them: at least one, and one more than were drafted at most. So the text is that of the decoder `autoregressive`,
    whatever is drafted: with a seed, too, since its noise depends on the position alone.

    Source: arXiv 2512.15176, of which the abstract alone is known. One thing differs at temperatures above 0: a draft
    is published to be accepted with the probability min(1, p / q), or else replaced by a token of max(p - q, 0).
    Here both networks draw with the same noise, which depends on seed and position, and a draft is accepted if it is
    what the served network draws (arXiv 2408.07978). Each token then has the served network's distribution, too, and
    for a seed the text is the same with any drafter. Where the two distributions differ by d (total variation), at
    least (1 - d) / (1 + d) of the drafts are accepted, against 1 - d.
    """

    NAME = "deer"
    SOURCE = "arXiv 2512.15176, with the difference that its rule names"
    DEFAULTS = {}

    layout = Layout.DRAFTER
    measure = Measure.PROBABILITY
    reads_proposals = True

    def __init__(self, params: Params, length: int) -> None:
        self.draft: Ints | None = None  # of the leftmost positions of the lane; None: the next forward drafts

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        tokens, drafts = view.canvas_tokens.copy(), list[Ints | None]()
        for number, (rule, lane) in enumerate(zip(rules, view.lanes.lanes, strict=True)):
            here = view.rows(range(number, number + 1))
            found, size = view.tokens[here], lane.end - lane.start
            if len(found) < size:
                drafts.append(found.copy())
                continue
            drafts.append(None)
            draft = found[:0] if rule.draft is None else rule.draft
            differs = np.flatnonzero(draft != found[: len(draft)])
            count = int(differs[0]) + 1 if len(differs) else len(found)
            tokens[here][:count] = found[:count]
        for rule, drafted in zip(rules, drafts, strict=True):
            rule.draft = drafted
        return CommitDecision(tokens)
