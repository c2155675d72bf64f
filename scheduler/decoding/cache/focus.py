"""FOCUS: within a block later layers compute the few open positions that are likeliest to commit, and what just did.

The first step of a block computes all of it, and the block before once more, whose keys are then exact, as with
`compact`. Any other step computes the block in the first two layers alone. The layers after these go on with the tokens
that committed in the last step, and with `focus_alpha` times as many open positions as the request has committed tokens
a step, on average, rounded up: those for which the attention of the open positions rises most from the first layer to
the second. All others keep the keys and values that they have in later layers, and cannot commit.

Source: arXiv 2601.23278; sands-lab/FOCUS. Here the number of positions is decided before the step, so that no size
depends on what the device finds. The authors also keep the left neighbour of a kept position, every position whose rise
is a standard deviation above the mean if these are enough, and all that no step has computed up to the rightmost kept
one; as a block is computed whole at first here, there are none of the last kind. Their average begins anew with each
block, their first two layers leave out settled tokens, too, and of a full block they compute the rest alone, so that
its keys are of several steps.
"""

from __future__ import annotations

import math

import numpy as np

from ...contract import Ints, Selection
from ..params import Params, Range
from .base import CachePolicy, ComputeRange, Progress, RequestExtent

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
        self._computed: Ints | None = None  # [length] the token with which all layers last computed each position
        self._open = 0  # positions, before the last step
        self._committed = self._commits = 0  # tokens, and steps that committed any

    @property
    def keeps_prompt(self) -> bool:
        return True

    def compute_range(self, extent: RequestExtent) -> ComputeRange:
        whole = ComputeRange(self._settled, extent.end, extent.end)
        return whole if extent.end != self._block_end else whole._replace(selection=self._selection(extent))

    def _selection(self, extent: RequestExtent) -> Selection | None:
        canvas, first = extent.canvas, self._settled
        tokens = canvas.tokens[max(first - canvas.origin, 0) : max(extent.end - canvas.origin, 0)]
        start = max(first, canvas.origin)
        before = self._computed
        if before is None:
            return None
        changed = tokens != before[start - canvas.origin : start - canvas.origin + len(tokens)]
        open_ = tokens == canvas.mask_id
        open_[max(extent.last - start, 0) :] = False
        committed, commits = self._progress(int(canvas.open.sum()))
        average = committed / commits if commits else 1.0
        candidates = start + np.flatnonzero(open_).astype(np.int32)
        keep = min(len(candidates), math.ceil(self._alpha * max(1.0, average)))
        # The prompt's tail in the first block, and what lies after the canvas in the last, do not change.
        stays = np.ones(extent.end - first, np.bool_)
        stays[start - first : start - first + len(tokens)] = ~(changed | open_)
        return Selection(keep, candidates, first + np.flatnonzero(stays).astype(np.int32))

    def _progress(self, open_: int) -> tuple[int, int]:
        """Tokens committed so far, with `open_` positions left, and the steps that committed any."""
        new = self._open - open_
        return self._committed + new, self._commits + (new > 0)

    def computed(self, range_: ComputeRange, extent: RequestExtent, progress: Progress) -> None:
        canvas, open_ = extent.canvas, int(extent.canvas.open.sum())
        if self._computed is None:
            self._computed = np.full(len(canvas.tokens), NONE, np.int32)
            self._open = open_
        self._committed, self._commits = self._progress(open_)
        self._open, self._block_end, self._settled = open_, range_.end, extent.frontier
        here = slice(max(range_.start - canvas.origin, 0), max(range_.end - canvas.origin, 0))
        self._computed[here] = canvas.tokens[here]
