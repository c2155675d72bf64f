"""Entropy: a position commits once its whole distribution is sharp, not just the best token's share of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from ..knobs import Knobs, Range, Values
from .base import Evidence, Remembering, Verdict, best


class Entropy(Remembering):
    """Open positions with an entropy of at most `entropy_threshold` nats commit, the lowest of all lanes in any case,
    and so does that of the leftmost lane where nothing else does. Source: d3LLM, arXiv 2601.07568."""

    KNOBS: Mapping[str, Values] = {"entropy_threshold": Range(0.0, 20.0)}

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold

    @classmethod
    def of(cls, knobs: Knobs, length: int) -> Self:
        return cls(knobs.number("entropy_threshold"))

    def choose(self, evidence: Evidence) -> Verdict:
        chosen = np.zeros(len(evidence.positions), np.bool_)
        for part in evidence.parts:
            chosen[part.here] = True
        inside = chosen & evidence.open
        chosen = inside & (evidence.entropy <= self._threshold)
        if inside.any():
            chosen[best(-evidence.entropy, inside)] = True
        for part in evidence.parts:
            if part.first and inside[part.here].any() and not chosen[part.here].any():
                chosen[part.here.start + best(-evidence.entropy[part.here], inside[part.here])] = True
        return evidence.commit(chosen)
