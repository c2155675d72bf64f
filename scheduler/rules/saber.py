"""Saber: commits faster the surer it has been, and takes back what the network believes less since.

Source: arXiv 2510.18165; zhaoyMa/Saber decoding.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from ..contract import Doubles
from ..knobs import Choice, Knobs, Range, Values
from .base import Bools, Evidence, Longs, Remembering, Verdict, top

SHARE = 8  # one position in so many commits is taken back


class Saber(Remembering):
    """Open positions commit whose confidence is above the mean of all commits so far, or else the `at_least` best. Then
    an eighth as many, and half of `at_least` if that is more, are taken back: the committed positions of the block
    whose best token has lost most probability since the call before. A block that is full is over.

    The published code computes confidence in float32, in which many positions are equally certain: the mean then is 1,
    which nothing exceeds. So does `precision` "single". It differs from that code in three ways. Blocks before the
    current one are final, where that code takes tokens back in all of them; with one block, which is the default, there
    are none. A block's last mask commits alone, where that code adds some other position's confidence to the mean. And
    of equals the leftmost goes first, where that code leaves it to the library, as it does the last bit of a sum.
    """

    KNOBS: Mapping[str, Values] = {
        "at_least": Range(2, 64, whole=True),
        "precision": Choice(("single", "double")),
    }

    revises = True

    def __init__(self, at_least: int, single: bool, length: int) -> None:
        self._at_least, self._single = at_least, single
        self._believed = np.zeros(length)  # the best token's probability in the call before
        self._committed = np.full(length, np.nan)  # confidence at the latest commit

    @classmethod
    def of(cls, knobs: Knobs, length: int) -> Self:
        return cls(knobs.integer("at_least"), knobs["precision"] == "single", length)

    def choose(self, evidence: Evidence) -> Verdict:
        tokens, (part,) = evidence.held.copy(), evidence.parts
        confidence = evidence.confidence[part.here]
        if self._single:
            confidence = _single(confidence)
        positions, open_ = evidence.positions[part.here], evidence.open[part.here]
        drop = confidence - self._believed[positions]
        self._believed[positions] = confidence
        chosen = self._chosen(confidence, open_)
        self._committed[positions[chosen]] = confidence[chosen]
        tokens[part.here][chosen] = evidence.tokens[part.here][chosen]
        stands = ~open_ | chosen
        if not stands.all():
            tokens[part.here][self._withdrawn(drop, stands, int(chosen.sum()))] = evidence.mask_id
        return Verdict(tokens)

    def _chosen(self, confidence: Doubles, open_: Bools) -> Bools:
        """[n] what commits of the block."""
        known = self._committed[~np.isnan(self._committed)]
        bar = known.mean() if len(known) else np.float64(1)
        if self._single:
            bar = np.float64(np.float32(bar))
        chosen: Bools = open_ & (confidence > bar)
        if chosen.sum() < self._at_least:
            chosen[top(confidence, open_, self._at_least)] = True
        return chosen

    def _withdrawn(self, drop: Doubles, stands: Bools, commits: int) -> Longs:
        """Where in the block what `stands` [n] there is taken back, of which so many are `commits` of this call."""
        count = max(self._at_least, commits)
        count = min(max(self._at_least // 2, -(-count // SHARE)), count - 1)
        return top(-drop, stands, count)


def _single(confidence: Doubles) -> Doubles:
    """What a softmax in float32 gives: the others' weight is added to the best one's 1."""
    weight = (1 / np.maximum(confidence, np.finfo(np.float64).tiny)).astype(np.float32)
    return (np.float32(1) / weight).astype(np.float64)
