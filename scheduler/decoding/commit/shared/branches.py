"""Branches of an ensemble: canvases that are decoded in blocks of their own, and exchange tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....contract import Doubles, Ints
from ...params import Choice, Params, Range
from ..base import StepView
from .speculation import Ensemble, Turn


class BlockCanvas:
    """One canvas [length], whose aligned block of `size` positions is `[start, end)`, and the last output at each of
    its positions: the likeliest tokens [length, ranks] and their probabilities."""

    def __init__(self, size: int, canvas: Ints, mask_id: int, ranks: int) -> None:
        self.size, self.canvas, self.mask_id = size, canvas, mask_id
        self.start, self.end = 0, min(size, len(canvas))
        self.ranked = np.full((len(canvas), ranks), -1, np.int32)
        self.probability = np.zeros((len(canvas), ranks))

    def remember(self, view: StepView) -> None:
        """Keep the output of a step."""
        places = view.positions
        ranks = min(self.ranked.shape[1], view.ranked.shape[1])
        self.ranked[places, :ranks] = view.ranked[:, :ranks]
        self.probability[places, :ranks] = np.exp(view.logprobs[:, :ranks].astype(np.float64))

    def probability_of(self, tokens: Ints) -> Doubles:
        """The last probabilities [length] of `tokens` [length]."""
        found: Doubles = (self.probability * (self.ranked == tokens[:, None])).sum(axis=1)
        return found

    def likeliest(self, others: Sequence[BlockCanvas]) -> tuple[Doubles, Ints]:
        """The tokens [length] of `others` to which its own last output gave most, and their probabilities [length]; its
        own token, and 0, where there is none."""
        probability, tokens = np.zeros(len(self.canvas)), self.canvas.copy()
        for other in others:
            found = np.where(other.canvas == self.mask_id, 0.0, self.probability_of(other.canvas))
            better = found > probability
            probability[better], tokens[better] = found[better], other.canvas[better]
        return probability, tokens


class Branched(Ensemble):
    """An ensemble whose `branches` have blocks of `smallest_block` positions, twice as many, four times, ...."""

    DEFAULTS = {
        "threshold": 0.9,
        "branches": 4,
        "smallest_block": 8,
        "sync_lag": 8,
        "merge_threshold": 0.5,
        "refresh_size": 32,
        "share_prompt": False,
    }
    PARAMS = {
        "branches": Range(1, 8, whole=True),
        "smallest_block": Range(1, 4096, whole=True),
        "sync_lag": Range(0, 4096, whole=True),
        "merge_threshold": Range(0.1, 1.0),
        "refresh_size": Range(1, 1_000_000, whole=True),
        "share_prompt": Choice((True, False)),
    }
    rows_param = "branches"
    scored = False

    def __init__(self, params: Params, length: int) -> None:
        self._threshold, self._merge_threshold = params.number("threshold"), params.number("merge_threshold")
        self._sync_lag, self._refresh_size = params.integer("sync_lag"), params.integer("refresh_size")
        self._sizes = [params.integer("smallest_block") << number for number in range(params.integer("branches"))]
        self._length = length
        self.ranks = max(1, int(1 / self._merge_threshold))
        self.copied: list[tuple[int, int]] = []
        self.turns: list[Turn] = []


def agreed(branches: Sequence[BlockCanvas]) -> Ints:
    """The tokens [length] that all have from the left on, and then masks."""
    first = branches[0]
    same = first.canvas != first.mask_id
    for branch in branches[1:]:
        same &= branch.canvas == first.canvas
    count = int(same.argmin()) if not same.all() else len(same)
    return np.where(np.arange(len(same)) < count, first.canvas, first.mask_id).astype(np.int32)
