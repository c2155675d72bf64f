"""Judges that have more than one canvas computed in a step, each in a row of its own, and then keep one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..boundaries import Longs
from ..contract import Ints
from .base import Bools, Evidence, Remembering, Verdict


class Branching(NamedTuple):
    """What stands at the n positions of a step from now on: `tokens` [n], the mask id where nothing does; each was seen
    in the row of one of the `branches` [n]."""

    tokens: Ints
    branches: Longs


class Speculator(Remembering):
    """A judge whose `drafts` are computed beside the canvas in the next step: canvases that hold all that it holds, and
    more. What it keeps holds all that the canvas held, so nothing is ever taken back."""

    def __init__(self) -> None:
        self.drafts: list[Ints] = []

    def choose_among(self, branches: Sequence[Evidence]) -> Branching:
        """Of what a step shows of the canvas, and then of each draft."""
        raise NotImplementedError

    def choose(self, evidence: Evidence) -> Verdict:
        """Where there may be no drafts: a grammar decides what comes next."""
        tokens = self.choose_among([evidence]).tokens
        self.drafts.clear()
        return Verdict(tokens)


def likeliest(evidence: Evidence, among: Bools) -> Longs:
    """Where it is `among` [n] these, in falling confidence, the leftmost of equals first."""
    places = np.flatnonzero(among)
    order: Longs = places[np.argsort(-evidence.confidence[places], kind="stable")]
    return order


def extended(evidence: Evidence, tokens: Ints, places: Longs) -> Ints:
    """A canvas that holds `tokens` [n], and what `evidence` proposes at these places."""
    canvas = evidence.canvas.copy()
    filled = tokens.copy()
    filled[places] = evidence.tokens[places]
    canvas[evidence.positions] = filled
    return canvas
