"""What a canvas position's likeliest tokens were in its last calls, for rules that ask how much they still change.

A distribution over a vocabulary is too much to keep for every position. A sketch of it is its likeliest tokens with
their probabilities, and one bucket for all others; of two sketches, tokens that only one of them names are in the
bucket too. By the data-processing inequality their divergence is never above that of the whole distributions.
"""

from __future__ import annotations

import numpy as np

from ..contract import Doubles, Floats, Ints
from .base import Evidence, Longs

LEAST = 1e-12  # probabilities below count as this much, as in KLASS's code


class History:
    """The last `depth` sketches, of `ranks` tokens, of each of `length` canvas positions."""

    def __init__(self, length: int, depth: int, ranks: int) -> None:
        self._depth = depth
        self._seen = np.zeros(length, np.intp)
        self._ids = np.zeros((depth, length, ranks), np.int32)
        self._logprobs = np.zeros((depth, length, ranks), np.float32)

    def add(self, evidence: Evidence) -> None:
        """Another call has told of its positions."""
        positions, ranks = evidence.positions, evidence.ranked.shape[1]  # a small vocabulary has fewer
        slot = self._seen[positions] % self._depth
        self._ids[slot, positions, :ranks] = evidence.ranked
        self._logprobs[slot, positions, ranks:] = -np.inf
        self._logprobs[slot, positions, :ranks] = evidence.logprobs
        self._seen[positions] += 1

    def divergence(self, positions: Ints | Longs, newer: int, older: int) -> Doubles:
        """KL in nats of the sketch `newer` calls ago (0: the last one) from that `older` calls ago, at each of
        `positions`; infinite where there have not been so many calls."""
        seen = self._seen[positions]
        now, then = (seen - 1 - newer) % self._depth, (seen - 1 - older) % self._depth
        found = divergence(
            self._ids[now, positions],
            self._logprobs[now, positions],
            self._ids[then, positions],
            self._logprobs[then, positions],
        )
        return np.where(seen > older, found, np.inf)


def divergence(ids: Ints, logprobs: Floats, ids_then: Ints, logprobs_then: Floats) -> Doubles:
    """KL in nats [n] of sketches, all [n, ranks], from earlier ones."""
    same = ids[:, :, None] == ids_then[:, None, :]
    named = same.any(2)
    p = np.exp(logprobs.astype(np.float64)) * named
    there = np.take_along_axis(logprobs_then, same.argmax(2), 1).astype(np.float64)
    q = np.where(named, np.exp(there), 0.0)
    rest_p, rest_q = 1.0 - p.sum(1), 1.0 - q.sum(1)
    whole: Doubles = _term(p, q).sum(1) + _term(rest_p, rest_q)
    return whole


def _term(p: Doubles, q: Doubles) -> Doubles:
    least = np.maximum(p, LEAST)
    terms: Doubles = np.maximum(p, 0.0) * np.log(least / np.maximum(q, LEAST))
    return terms
