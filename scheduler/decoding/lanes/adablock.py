"""AdaBlock: serial blocks that end where the network is about to end a line, so that none begins in mid-sentence.

Source: arXiv 2509.26432; lgxi24/AdaBlock-dLLM llada/generate_adablock.py. The call that starts a block also chooses how
long it is: of the delimiters that it proposes within a share `window` of the canvas, the one with the highest
confidence ends the block if that is at least `delimiter_threshold`; otherwise the block has its default length. What
this call commits is within the block that it has chosen, so the host decides it, whatever the commit rule. Defaults
are the authors' for LLaDA; for Dream, line breaks with spaces count too, and need a confidence of 0.5. Three things
differ: delimiters are classes of the tokenizer's tokens, where the authors list ids; a block starts at the first open
position; and their confidences are float32, so that many near 1 are equal, which is told here by a tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..commit.base import Bools, StepView, best
from ..lane_tree import LaneTree
from ..vocabulary import (
    BARE,
    NEWLINE,
    PAUSE,
    PERIOD,
    Vocabulary,
)
from .base import LaneStatus, Unforked, require_token

DELIMITERS: Mapping[str, int] = {
    "newline": NEWLINE,
    "newlines": BARE,  # or some, or with spaces
    "newline_period_comma": NEWLINE | PERIOD | PAUSE,
}

TOLD_APART = 2.0**-18  # log-probabilities closer than this are equal, as in float32, and the leftmost counts


@dataclass(frozen=True, slots=True)
class AdaBlock(Unforked):
    reads_view = True

    block_length: int
    window: float
    delimiters: str
    delimiter_threshold: float

    def require(self, vocabulary: Vocabulary) -> None:
        require_token(vocabulary, "delimiters", self.delimiters, DELIMITERS)

    def open(self, tree: LaneTree) -> None:
        tree.block_length = max(self.block_length, self._window(tree))
        tree.append(0)

    def read_view(self, tree: LaneTree, view: StepView, vocabulary: Vocabulary) -> None:
        """A lane is born as long as any block may be, and is cut by its first call."""
        (lane,) = tree.live
        if not lane.steps:
            near = view.positions < min(lane.start + self._window(tree), lane.end)
            found = near & ((vocabulary.classes[view.tokens] & DELIMITERS[self.delimiters]) != 0)
            tree.cut(lane, min(self._end(lane.start, found, view), lane.end))

    def _end(self, start: int, found: Bools, view: StepView) -> int:
        if found.any():
            at = best(np.rint(np.log(view.confidence) / TOLD_APART), found)
            if view.confidence[at] >= self.delimiter_threshold:
                return int(view.positions[at]) + 1
        return start + self.block_length

    def _window(self, tree: LaneTree) -> int:
        return int(self.window * len(tree.canvas))

    def advance(self, tree: LaneTree, facts: list[LaneStatus]) -> None:
        (lane,) = tree.live
        if not lane.masks:
            tree.finish(lane)
            tree.append(lane.end, lane)
