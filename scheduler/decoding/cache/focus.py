"""FOCUS: within a block later layers compute the few open positions that are likeliest to commit, and what just did.

The first step of a block computes all of it, and the block before once more, whose keys are then exact, as with
`compact`. Any other step computes the block in the first layer, and its keys and values in the second. The attention of
the second layer, and all that follows, goes on with the tokens that committed in the last step, and with `focus_alpha`
times as many open positions as the request has committed tokens a step, on average, rounded up: those for which the
attention of the open positions rises most from the first layer to the second. All others keep the keys and values that
they have in later layers, and cannot commit.

Source: arXiv 2601.23278; sands-lab/FOCUS. Here the number of positions is decided before the step, so that no size
depends on what the device finds. The authors also keep the left neighbour of a kept position, every position whose rise
is a standard deviation above the mean if these are enough, and all that no step has computed up to the rightmost kept
one; as a block is computed whole at first here, there are none of the last kind. Their average begins anew with each
block, they leave settled tokens out of all layers, the first two as well, and of a full block they compute the rest
alone, so that its keys are of several steps.
"""

from __future__ import annotations

import math

import numpy as np

from ...contract import Ints, Selection
from ..params import Params, Range
from .base import NO_CANVAS, CachePolicy, ComputeRange, Progress, RequestExtent

NONE = -1


class Focus(CachePolicy):
    NAME = "focus"
    DEFAULTS = {"focus_alpha": 1.5}
    PARAMS = {"focus_alpha": Range(1.0, 4096.0)}
    reads_canvas = True

    def __init__(self, params: Params) -> None:
        self._alpha = params.number("focus_alpha")
        self._settled = 0  # positions before it are exact
        self._block_end = NONE  # of the last step
        self._lane_end = NONE  # of the last step
        self._tokens = NO_CANVAS.tokens  # of the lane, with which all layers last computed it
        self._open = 0  # positions of the lane, before the last step
        self._committed = self._commits = 0  # tokens, and steps that committed any, before the last step

    @property
    def keeps_prompt(self) -> bool:
        return True

    def compute_range(self, extent: RequestExtent) -> ComputeRange:
        begun = extent.end == self._block_end and extent.last == self._lane_end
        selection = self._selection(extent) if begun else None
        return ComputeRange(self._settled, extent.end, extent.end, selection=selection)

    def _selection(self, extent: RequestExtent) -> Selection:
        start, tokens = _lane(extent)
        open_ = tokens == extent.canvas.mask_id
        candidates = open_.nonzero()[0] + start
        committed, commits = self._progress(len(candidates))
        average = committed / commits if commits else 1.0
        keep = min(len(candidates), math.ceil(self._alpha * max(1.0, average)))
        cached = ((tokens == self._tokens) > open_).nonzero()[0] + start
        if self._settled < start or extent.last < extent.end:  # the prompt's tail, or what lies after the canvas
            around = np.arange(self._settled, start), cached, np.arange(extent.last, extent.end)
            cached = np.concatenate(around)
        return Selection(keep, candidates.astype(np.int32), cached.astype(np.int32))

    def _progress(self, open_: int) -> tuple[int, int]:
        """Tokens committed so far, with `open_` positions left in the lane, and the steps that committed any."""
        new = self._open - open_
        return self._committed + new, self._commits + (new > 0)

    def computed(self, range_: ComputeRange, extent: RequestExtent, progress: Progress) -> None:
        _, tokens = _lane(extent)
        open_ = int(np.count_nonzero(tokens == extent.canvas.mask_id))
        # The lane before was full when this one began.
        self._committed, self._commits = self._progress(open_ if extent.last == self._lane_end else 0)
        self._open, self._tokens, self._lane_end = open_, tokens, extent.last
        self._block_end, self._settled = range_.end, extent.frontier


def _lane(extent: RequestExtent) -> tuple[int, Ints]:
    """The start of the lane, where a block of the network may have begun before, and its tokens."""
    start, origin = extent.first, extent.canvas.origin
    return start, extent.canvas.tokens[start - origin : extent.last - origin]
