"""FreeDave: guesses its own next steps, and computes them all in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np

from ....contract import Ints
from ...params import OFF, Params, Range, Values
from ..base import StepView, top
from ..shared.speculation import Branching, Speculator, extended


class FreeDave(Speculator):
    """An ordinary step commits the `tokens_per_call` likeliest positions, or with `commit_threshold` all of that
    confidence and at least the best. The logits that gave a step also say what the next ones would commit if the
    network did not change its mind: drafts 2 to `draft_steps` fill so many more of the likeliest positions. One call
    computes the canvas and all drafts. From what the canvas's row decides, it goes on to the longest draft that holds
    nothing else, from there again, and keeps what the last one decides.

    Without a threshold a draft is kept only if it is what the steps would have come to, so the answer is that of the
    same cache with one row, in fewer calls. With one, a kept draft may hold less than the step before would have
    committed: the answer is then another of the same kind. Source: arXiv 2510.00294; cychomatica/FreeDave
    generation/core.py, `batch_expanding`. There the first draft is computed as one of the copies: here it is the canvas
    itself. A block's first call computes no drafts, as its logits are the first with that block's cache (the authors
    draft across the border in their eager mode). Noise at a temperature above 0 goes by the number of the call, so
    that answers drawn at random differ from those of one row. Under a grammar there are no drafts.
    """

    PARAMS: Mapping[str, Values] = {
        "draft_steps": Range(1, 16, whole=True),
        "tokens_per_call": Range(1, 64, whole=True),
        "commit_threshold": Range(0.0, 1.0, words=(OFF,)),
    }

    def __init__(self, draft_steps: int, size: int, threshold: float) -> None:
        super().__init__()
        self._draft_steps, self._size, self._threshold = draft_steps, size, threshold

    @classmethod
    def of(cls, knobs: Params, length: int) -> Self:
        return cls(knobs.integer("draft_steps"), knobs.integer("tokens_per_call"), knobs.threshold("commit_threshold"))

    @staticmethod
    def beside(knobs: Params) -> int:
        return knobs.integer("draft_steps") - 1

    def choose_among(self, branches: Sequence[StepView]) -> Branching:
        steps = [self._step(branch) for branch in branches]
        kept = [0]
        while (farther := self._farther(branches, steps[kept[-1]], kept[-1])) is not None:
            kept.append(farther)
        last, tokens = branches[kept[-1]], steps[kept[-1]]
        seen = np.full(len(tokens), kept[-1])
        for number in reversed(kept):  # what several rows have decided, the first one did
            seen[steps[number] == tokens] = number
        order = top(last.confidence, tokens == last.mask_id)
        fills = range(self._size, min(len(order), self._size * (self._draft_steps - 1) + 1), self._size)
        self.drafts = [extended(last, tokens, order[:fill]) for fill in fills]
        return Branching(tokens, seen)

    def _step(self, branch: StepView) -> Ints:
        """What an ordinary step makes of it."""
        if self._threshold <= 1.0:
            return branch.commit(branch.at_least(branch.confidence, self._threshold)).tokens
        first, chosen = branch.lane_slices[0].here, np.zeros(len(branch.positions), np.bool_)
        chosen[first.start + top(branch.confidence[first], branch.open[first], self._size)] = True
        return branch.commit(chosen).tokens

    @staticmethod
    def _farther(branches: Sequence[StepView], decided: Ints, behind: int) -> int | None:
        """The last of the drafts behind this one that hold nothing but what is `decided`."""
        for number in range(len(branches) - 1, behind, -1):
            held = branches[number].canvas_tokens
            if np.array_equal(held, np.where(held == branches[number].mask_id, held, decided)):
                return number
        return None
