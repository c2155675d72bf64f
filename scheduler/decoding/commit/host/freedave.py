"""FreeDave: drafts its own next steps, and computes them all in one forward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np

from ....contract import Doubles, Ints
from ...params import OFF, Params, Range
from ..base import StepView, top
from ..segments import Bools
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

    @classmethod
    def choose_among(cls, rules: Sequence[Self], view: StepView, rows: Sequence[range]) -> list[Branching]:
        steps = cls._steps([rule for rule, own in zip(rules, rows, strict=True) for _ in own], view)
        choices, drafts = list[Branching](), list[list[Ints]]()
        for rule, own in zip(rules, rows, strict=True):
            here, shape = view.rows(own), (len(own), -1)
            choice, last = rule._choice(
                steps[here].reshape(shape), view.canvas_tokens[here].reshape(shape), view.mask_id
            )
            confidence, proposals = (array[here].reshape(shape)[last] for array in (view.confidence, view.tokens))
            order = top(confidence, choice.tokens == view.mask_id)
            fills = [fill for fill in rule._fills(confidence[order]) if fill < len(order)]
            positions = view.positions[here][: len(choice.tokens)]
            base = extended(view.canvases[own.start + last], positions, choice.tokens)
            drafts.append([extended(base, positions[order[:fill]], proposals[order[:fill]]) for fill in fills])
            choices.append(choice)
        for rule, made in zip(rules, drafts, strict=True):
            rule.drafts = made
        return choices

    @classmethod
    def _steps(cls, rules: Sequence[FreeDave], view: StepView) -> Ints:
        """[n] the tokens after an ordinary step from each row of the view, which belongs to one of `rules` [rows]."""
        threshold = np.array([rule._threshold for rule in rules])
        chosen = view.at_least(view.confidence, view.each(threshold))
        counted = (threshold > 1.0)[view.lanes.owner]
        size = np.where(view.lanes.leftmost, np.array([rule._size for rule in rules])[view.lanes.owner], 0)
        best = view.lanes.top(view.confidence, view.open, size)
        return view.commit(np.where(view.lanes.spread(counted, outside=False), best, chosen)).tokens

    def _fills(self, falling: Doubles) -> Iterable[int]:
        """How many of the likeliest positions, whose confidences are `falling`, each draft fills."""
        return range(self._size, self._size * (self._draft_steps - 1) + 1, self._size)

    def _accepted(self, canvases: Ints, decided: Ints, mask_id: int) -> Bools:
        """[rows] whether each of the `canvases` [rows, n] holds nothing but what was `decided` [n]."""
        accepted: Bools = ((canvases == mask_id) | (canvases == decided)).all(axis=1)
        return accepted

    def _choice(self, steps: Ints, canvases: Ints, mask_id: int) -> tuple[Branching, int]:
        """The decision from what each row [rows, n] has decided and contains, and the row that it is taken from."""
        kept, rows = [0], np.arange(len(steps))
        while True:  # to the last draft that agrees with what is decided
            accepted = self._accepted(canvases, steps[kept[-1]], mask_id) & (rows > kept[-1])
            if not accepted.any():
                break
            kept.append(int(np.flatnonzero(accepted)[-1]))
        tokens = steps[kept[-1]]
        seen = np.full(len(tokens), kept[-1])
        for number in reversed(kept):  # of several rows that decided the same, the first one counts
            seen[steps[number] == tokens] = number
        return Branching(tokens, seen), kept[-1]
