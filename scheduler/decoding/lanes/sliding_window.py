"""WeDLM: a window of fixed length that begins with the first open position, and moves on with it.

Source: arXiv 2512.22737; Tencent/WeDLM wedlm/engine/wedlm_decoder.py. Two things differ: an answer ends as soon as all
before its end token is committed, where the authors compute these tokens once more, for their keys; and the window ends
with the canvas, where theirs goes on past `max_tokens`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..lane_tree import LaneTree
from ..params import Range
from .base import LanePolicy, LaneStatus


@dataclass(frozen=True, slots=True)
class SlidingWindow(LanePolicy):
    PARAMS = {"window_length": Range(1, 4096, whole=True)}

    window_length: int

    def open(self, tree: LaneTree) -> None:
        tree.block_length = self.window_length
        tree.append(0)

    def advance(self, tree: LaneTree, statuses: list[LaneStatus]) -> None:
        (lane,) = tree.live
        if not tree.slide(lane, self.window_length):
            tree.finish(lane)
