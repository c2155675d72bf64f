"""DAEDAL: the canvas grows until the network sees an end, and wherever it cannot fill a position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from ...lane_tree import LaneTree
from ...params import Params, Range
from ..base import CommitDecision, HostCommitRule, StepView

WINDOW = 32  # proposals of an end that are counted, from the end of the canvas
ENDS = 16  # end tokens after a canvas that is long enough


class Daedal(HostCommitRule):
    """The canvas begins with `canvas_start` positions. At first nothing commits: after each forward `canvas_step` more
    are added, until ends are dense enough, `grow_below`. Their density is the sum of the probabilities of the last 32
    proposals that are ends, divided by 32. From then on 16 end tokens follow the canvas, and open positions of the
    block commit above `threshold`, or else the best. Where some position of the block has less than `unsure_below`
    confidence and the density is below `expand_below`, the canvas gets `canvas_step` less one more positions. It is
    never longer than `max_tokens`.

    After arXiv 2508.00819; Li-Jinsong/DAEDAL. There the least confident position becomes `canvas_step` ones, and all
    tokens after it move. Here tokens keep their places: the canvas grows at its end.
    """

    NAME = "daedal"
    SOURCE = "after arXiv 2508.00819; Li-Jinsong/DAEDAL, with the difference that `Daedal` names"
    DEFAULTS = {
        "threshold": 0.9,
        "canvas_start": 64,
        "canvas_step": 8,
        "grow_below": 0.5,
        "expand_below": 0.9,
        "unsure_below": 0.1,
    }
    PARAMS = {
        "canvas_start": Range(1, 1_000_000, whole=True),
        "canvas_step": Range(2, 4096, whole=True),
        "grow_below": Range(0.0, 1.0),
        "expand_below": Range(0.0, 1.0),
        "unsure_below": Range(0.0, 1.0),
    }
    sees_ahead = True
    grows = True

    def __init__(self, params: Params, length: int) -> None:
        self._threshold = float(np.nextafter(params.number("threshold"), 2))
        self._most, self._step = length, params.integer("canvas_step")
        self._grow, self._expand = params.number("grow_below"), params.number("expand_below")
        self._unsure = params.number("unsure_below")
        self._length, self._growing = min(params.integer("canvas_start"), length), True
        self._resized = self._length  # when the canvas was last set

    @property
    def canvas_end(self) -> int:
        return self._length if self._growing else min(self._length + ENDS, self._most)

    def resize(self, tree: LaneTree) -> int:
        tree.canvas[self._resized :] = tree.mask_id  # where end tokens were
        self._resized = self._length
        if not self._growing:
            tree.canvas[self._length : self.canvas_end] = tree.filler
        return self._length

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        confidence, filling = view.confidence, view.each([not rule._growing for rule in rules])
        chosen = view.at_least(confidence, view.each([rule._threshold for rule in rules])) & filling
        unsure = view.open & view.lanes.inside & ~chosen & (confidence < view.each([rule._unsure for rule in rules]))
        ends, doubts = view.ends[view.tokens], view.requests.any(unsure).tolist()
        densities = []
        for number in range(len(rules)):
            here = view.rows(range(number, number + 1))
            densities.append(float(confidence[here][ends[here]][-WINDOW:].sum()) / WINDOW)
        for rule, density, doubt in zip(rules, densities, doubts, strict=True):
            rule._follow(density, doubt)
        return view.commit(chosen)

    def _follow(self, density: float, doubt: bool) -> None:
        """Set the length of the canvas after a forward with this `density` of ends."""
        if self._growing:
            if density < self._grow and self._length < self._most:
                self._length = min(self._length + self._step, self._most)
            else:
                self._growing = False
        elif doubt and density < self._expand:
            self._length = min(self._length + self._step - 1, self._most)
