"""The likeliest tokens of a canvas position in its last forwards, for rules that measure how much they still change.

A distribution over a vocabulary is too much to keep for every position. A sketch of it is its likeliest tokens with
their probabilities, and one bucket for all others; of two sketches, tokens that only one of them has are in the bucket
too. By the data-processing inequality the divergence of sketches is never above that of the whole distributions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ....contract import Floats, Ints
from ..base import Longs, StepView

LIKELY = 8  # tokens of a sketch
LEAST = 1e-12  # probabilities below count as this much, as in KLASS's code


class History:
    """The last `depth` sketches of each of `length` canvas positions of one request."""

    def __init__(self, length: int, depth: int) -> None:
        self._depth = depth
        self._seen = np.zeros(length, np.intp)
        self._ids = np.zeros((length * depth, LIKELY), np.int32)
        self._logprobs = np.full((length * depth, LIKELY), -np.inf, np.float32)  # where there are none


class Histories:
    """The histories of the requests of a view, all of the same depth."""

    def __init__(self, histories: Sequence[History], view: StepView) -> None:
        self._histories, self._view = histories, view
        self._depth = histories[0]._depth
        self._seen = view.gather([history._seen for history in histories])

    def add(self) -> None:
        """Add a sketch of the view's positions."""
        view, histories = self._view, self._histories
        ranks = view.ranked.shape[1]  # fewer than `LIKELY` of a small vocabulary
        rows = view.positions * self._depth + self._seen % self._depth
        bounds = zip(histories, view.requests.starts.tolist(), view.requests.ends.tolist(), strict=True)
        for history, start, end in bounds:
            here = rows[start:end]
            history._ids[here, :ranks] = view.ranked[start:end]
            history._logprobs[here, :ranks] = view.logprobs[start:end]
        self._seen = self._seen + 1
        view.scatter([history._seen for history in histories], self._seen)

    def divergence(self, at: Longs, newer: Longs, older: Longs) -> Floats:
        """KL in nats of the sketches `newer` [m] forwards ago (0: the last one) from those `older` [m] forwards ago,
        [m, n] at the indices `at` [n] of the view; infinite where there have been fewer forwards."""
        seen = self._seen[at]
        now, then = self._sketches(at, seen, newer), self._sketches(at, seen, older)
        p = now[1]
        same = now[0][..., None] == then[0][..., None, :]
        q = np.matmul(same.astype(np.float32), then[1][..., None])[..., 0]
        p[q == 0] = 0  # in the bucket
        rest_p, rest_q = 1 - p.sum(-1), 1 - q.sum(-1)
        return np.where(seen > older[:, None], _terms(p, q).sum(-1) + _terms(rest_p, rest_q), np.float32(np.inf))

    def _sketches(self, at: Longs, seen: Longs, ago: Longs) -> tuple[Ints, Floats]:
        """Tokens and probabilities [m, n, likely] as they were `ago` [m] forwards."""
        view = self._view
        rows = view.positions[at] * self._depth + (seen - 1 - ago[:, None]) % self._depth
        owner = view.requests.index[at]
        bounds = owner.searchsorted(np.arange(len(self._histories) + 1)).tolist()
        parts = [
            (history, rows[:, start:end])
            for history, (start, end) in zip(self._histories, pairwise(bounds), strict=True)
            if start < end
        ]
        ids = np.concatenate([history._ids[here] for history, here in parts], axis=1)
        logprobs = np.concatenate([history._logprobs[here] for history, here in parts], axis=1)
        return ids, np.exp(logprobs.astype(np.float64)).astype(np.float32)


def _terms(p: Floats, q: Floats) -> Floats:
    terms: Floats = np.maximum(p, 0) * np.log(np.maximum(p, LEAST) / np.maximum(q, LEAST))
    return terms
