"""The likeliest tokens of a canvas position in its last forwards, for rules that measure how much they still change.

A distribution over a vocabulary is too much to keep for every position. A sketch of it is its likeliest tokens with
their probabilities, and one bucket for all others; of two sketches, tokens that only one of them has are in the bucket
too. By the data-processing inequality the divergence of sketches is never above that of the whole distributions.
"""

from __future__ import annotations

import numpy as np

from ....contract import Floats, Ints
from ..base import Longs, StepView

LIKELY = 8  # tokens of a sketch
LEAST = 1e-12  # probabilities below count as this much, as in KLASS's code


class History:
    """The last `depth` sketches of each of `length` canvas positions."""

    def __init__(self, length: int, depth: int) -> None:
        self._depth = depth
        self._seen = np.zeros(length, np.intp)
        self._ids = np.zeros((depth, length, LIKELY), np.int32)  # of probability 0 where there are none
        self._probabilities = np.zeros((depth, length, LIKELY), np.float32)

    def add(self, view: StepView) -> None:
        """Add a sketch of the view's positions."""
        positions, ranks = view.positions, view.ranked.shape[1]  # fewer than `LIKELY` of a small vocabulary
        seen = self._seen[positions]
        slot = seen % self._depth
        self._ids[slot, positions, :ranks] = view.ranked
        self._probabilities[slot, positions, :ranks] = np.exp(view.logprobs)
        self._seen[positions] = seen + 1

    def divergence(self, positions: Ints | Longs, newer: Longs, older: Longs) -> Floats:
        """KL in nats of the sketches `newer` [m] forwards ago (0: the last one) from those `older` [m] forwards ago,
        [m, n] at `positions` [n]; infinite where there have been fewer forwards."""
        seen = self._seen[positions]
        now, then = ((seen - 1 - ago[:, None]) % self._depth for ago in (newer, older))
        p = self._probabilities[now, positions]
        same = self._ids[now, positions][..., None] == self._ids[then, positions][..., None, :]
        q = np.matmul(same.astype(np.float32), self._probabilities[then, positions][..., None])[..., 0]
        p[q == 0] = 0  # in the bucket
        rest_p, rest_q = 1 - p.sum(-1), 1 - q.sum(-1)
        return np.where(seen > older[:, None], _terms(p, q).sum(-1) + _terms(rest_p, rest_q), np.float32(np.inf))


def _terms(p: Floats, q: Floats) -> Floats:
    terms: Floats = np.maximum(p, 0) * np.log(np.maximum(p, LEAST) / np.maximum(q, LEAST))
    return terms
