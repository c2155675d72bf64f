"""FreeDave: drafts its own next steps, and computes them all in one forward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....contract import Ints
from ...params import OFF, Params, Range
from ..base import StepView, top
from ..shared.speculation import Branching, Speculator, extended


class FreeDave(Speculator):
    """An ordinary step commits the `tokens_per_call` likeliest positions, or with `commit_threshold` all of that
    confidence and at least the best. The same logits also say what the next steps would commit if the network did not
    change its mind: drafts 2 to `draft_steps` fill accordingly more of the likeliest positions. One forward computes
    the canvas and all drafts. From the decision of the canvas's row it goes on to the longest draft that holds nothing
    else, from there again, and keeps the decision of the last one.

    Without a threshold a draft is kept only if it is what the steps would have come to, so the answer is that of the
    same cache with one row, in fewer forwards. With one, a kept draft may hold less than the step before would have
    committed, so the answer may differ. Source: arXiv 2510.00294; cychomatica/FreeDave generation/core.py,
    `batch_expanding`. There the first draft is one of the copies: here it is the canvas itself. A block's first forward
    has no drafts, as its logits are the first with that block's cache (the authors draft across the border in their
    eager mode). Noise at a temperature above 0 depends on the number of the forward, so sampled answers differ from
    those of one row. With a grammar there are no drafts.
    """

    NAME = "freedave"
    SOURCE = "arXiv 2510.00294; cychomatica/FreeDave generation/core.py"
    DEFAULTS = {"draft_steps": 4, "tokens_per_call": 1, "commit_threshold": OFF}
    PARAMS = {
        "draft_steps": Range(1, 16, whole=True),
        "tokens_per_call": Range(1, 64, whole=True),
        "commit_threshold": Range(0.0, 1.0, words=(OFF,)),
    }
    rows_param = "draft_steps"

    def __init__(self, params: Params, length: int) -> None:
        super().__init__(params, length)
        self._draft_steps, self._size = params.integer("draft_steps"), params.integer("tokens_per_call")
        self._threshold = params.threshold("commit_threshold")

    def choose_among(self, branches: Sequence[StepView]) -> Branching:
        steps = [self._step(branch) for branch in branches]
        kept = [0]
        while (farther := self._farther(branches, steps[kept[-1]], kept[-1])) is not None:
            kept.append(farther)
        last, tokens = branches[kept[-1]], steps[kept[-1]]
        seen = np.full(len(tokens), kept[-1])
        for number in reversed(kept):  # of several rows that decided the same, the first one counts
            seen[steps[number] == tokens] = number
        order = top(last.confidence, tokens == last.mask_id)
        fills = range(self._size, min(len(order), self._size * (self._draft_steps - 1) + 1), self._size)
        self.drafts = [extended(last, tokens, order[:fill]) for fill in fills]
        return Branching(tokens, seen)

    def _step(self, branch: StepView) -> Ints:
        """The tokens [n] after an ordinary step."""
        if self._threshold <= 1.0:
            return branch.commit(branch.at_least(branch.confidence, self._threshold)).tokens
        first, chosen = branch.lanes.leftmost, branch.nothing()
        chosen[top(branch.confidence, branch.open & branch.lanes.spread(first, outside=False), self._size)] = True
        return branch.commit(chosen).tokens

    @staticmethod
    def _farther(branches: Sequence[StepView], decided: Ints, last: int) -> int | None:
        """The last draft after `last` that holds nothing but what is `decided`."""
        for number in range(len(branches) - 1, last, -1):
            tokens = branches[number].canvas_tokens
            if np.array_equal(tokens, np.where(tokens == branches[number].mask_id, tokens, decided)):
                return number
        return None
