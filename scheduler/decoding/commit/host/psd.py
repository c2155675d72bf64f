"""PSD: drafts of several depths of what a threshold would commit next, checked together in one forward."""

from __future__ import annotations

from collections.abc import Iterable

from ....contract import Doubles, Ints
from ...params import Choice, Params, Range
from ..segments import Bools
from ..shared.speculation import Speculator
from .freedave import FreeDave


class PSD(FreeDave):
    """An ordinary step commits all positions of `threshold` confidence, and at least the best. The same logits say what
    the next steps might commit: the draft of depth k = 1, 2, ... fills the positions of `threshold` times
    `draft_decay`^k confidence, and at least one more than the draft before; with the canvas there are `draft_steps`
    rows. One forward computes all of them. From the decision of the canvas's row it goes on to the deepest draft that
    agrees with it, from there again, and keeps the decision of the last one.

    By `accept` "exact" a draft agrees if it is that decision, position for position. Then each draft that is kept is
    where the ordinary steps would have come to, so at temperature 0 the answer is that of `fast-dllm` with the same
    cache, in fewer forwards. By "subset" it may lack some of the tokens; then answers may differ.

    After arXiv 2605.15609, of which only the abstract was available. From it: several depths from one forward, one
    forward that checks them all, and that the deepest consistent one is kept. Ours: how drafts are made of a threshold,
    and both ways to compare. As with `FreeDave`, a block's first forward has no drafts, and neither has a grammar.
    """

    NAME = "psd"
    SOURCE = "after arXiv 2605.15609"
    DEFAULTS = {"threshold": 0.9, "draft_steps": 4, "draft_decay": 0.85, "accept": "exact"}
    PARAMS = {"draft_decay": Range(0.0, 1.0), "accept": Choice(("exact", "subset"))}

    def __init__(self, params: Params, length: int) -> None:
        Speculator.__init__(self, params, length)
        self._draft_steps, self._size = params.integer("draft_steps"), 1
        self._threshold, self._decay = params.number("threshold"), params.number("draft_decay")
        self._exact = params["accept"] == "exact"

    def _fills(self, falling: Doubles) -> Iterable[int]:
        filled = 0
        for depth in range(1, self._draft_steps):
            passing = int((falling >= self._threshold * self._decay**depth).sum())
            filled = max(filled + 1, passing)
            yield filled

    def _accepted(self, canvases: Ints, decided: Ints, mask_id: int) -> Bools:
        if not self._exact:
            return super()._accepted(canvases, decided, mask_id)
        same: Bools = (canvases == decided).all(axis=1)
        return same
