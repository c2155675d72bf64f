"""AdaBlock: serial blocks that end where the network is about to end a line, so that none begins in mid-sentence.

Source: arXiv 2509.26432; lgxi24/AdaBlock-dLLM llada/generate_adablock.py. The forward that starts a block also chooses
its length: of the delimiters that it proposes within a share `window` of the canvas, the one with the highest
confidence ends the block if that is at least `delimiter_threshold`; otherwise the block has its default length. This
forward commits only within the block it has chosen, so the host decides it, whatever the commit rule. Defaults are the
authors' for LLaDA; for Dream, line breaks with spaces count too, and need a confidence of 0.5. Three things differ:
delimiters are classes of the tokenizer's tokens, where the authors list ids; a block starts at the first open position;
and their confidences are float32, so many near 1 are equal, which a tolerance reproduces here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..commit.base import StepView, best
from ..commit.segments import Bools
from ..lane_tree import LaneTree
from ..params import Choice, Range
from ..vocabulary import BARE, NEWLINE, PAUSE, PERIOD, Vocabulary
from .blockwise import Blockwise

DELIMITERS: Mapping[str, int] = {
    "newline": NEWLINE,
    "newlines": BARE,  # one or more, or with spaces
    "newline_period_comma": NEWLINE | PERIOD | PAUSE,
}

TOLERANCE = 2.0**-18  # log-probabilities closer than this are equal, as in float32, and the leftmost counts


@dataclass(frozen=True, slots=True)
class AdaBlock(Blockwise):
    PARAMS = {
        "window": Range(0.0, 1.0),
        "delimiters": Choice(tuple(DELIMITERS)),
        "delimiter_threshold": Range(0.0, 1.0),
    }
    TOKENS = {"delimiters": DELIMITERS}
    reads_view = True

    window: float
    delimiters: str
    delimiter_threshold: float

    def open(self, tree: LaneTree) -> None:
        tree.block_length = max(self.block_length, self._window(tree))
        tree.append(0)

    def read_view(self, tree: LaneTree, view: StepView, vocabulary: Vocabulary) -> None:
        """A lane begins as long as any block may be, and its first forward cuts it."""
        (lane,) = tree.live
        if not lane.steps:
            near = view.positions < min(lane.start + self._window(tree), lane.end)
            found = near & ((vocabulary.classes[view.tokens] & DELIMITERS[self.delimiters]) != 0)
            tree.cut(lane, min(self._end(lane.start, found, view), lane.end))

    def _end(self, start: int, found: Bools, view: StepView) -> int:
        if found.any():
            at = best(np.rint(np.log(view.confidence) / TOLERANCE), found)
            if view.confidence[at] >= self.delimiter_threshold:
                return int(view.positions[at]) + 1
        return start + self.block_length

    def _window(self, tree: LaneTree) -> int:
        return int(self.window * len(tree.canvas))
