"""The parts of an answer template: all gaps but the last are filled at once, and the last one, the summary, after them.

Each gap of the canvas is a lane. Those before the last one commit in every step. The last one joins them once they have
committed a share `summary_after` of their positions. Without a template the canvas is one part.

Source: NAP, pixeli99/NAP README: `<think #1>` R1 ... `<summary>` S, where the R fill in parallel and S follows. In its
training S is fully masked until 0.8 of the other positions are known. Its decoding code is not published, so the 0.8 is
taken from there.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..lane_tree import LaneTree
from ..params import Range
from .base import ABSENT, LanePolicy, LaneStatus


@dataclass(frozen=True, slots=True)
class Parts(LanePolicy):
    """Without `early_stop` an end token is a token like others."""

    PARAMS = {"summary_after": Range(0.0, 1.0)}
    serial = False

    summary_after: float
    early_stop: bool | str = True

    def open(self, tree: LaneTree) -> None:
        tree.append(tree.open_gaps(), block_end=tree.limit)
        for lane in tree.live[:-1]:
            lane.active = True

    def advance(self, tree: LaneTree, statuses: list[LaneStatus]) -> None:
        summary = tree.live[-1]
        ends = [status.end_at for status in statuses if status.end_at != ABSENT]
        if self.early_stop is True and ends:
            tree.end_at(min(ends))
        for lane in tuple(tree.live):
            if not lane.masks:
                tree.finish(lane)
        gaps, open_ = tree.gap_positions, tree.masks(0, summary.start)
        summary.active |= gaps > 0 and (gaps - open_) / gaps >= self.summary_after
