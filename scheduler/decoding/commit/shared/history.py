"""The likeliest tokens of a canvas position in its last forwards, for rules that measure how much they still change.

A distribution over a vocabulary is too much to keep for every position. A sketch of it is its likeliest tokens with
their probabilities, and one bucket for all others; of two sketches, tokens that only one of them has are in the bucket
too. By the data-processing inequality the divergence of sketches is never above that of the whole distributions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ....contract import Floats
from ..base import StepView
from ..segments import Array, Longs, whole_rows

LIKELY = 8  # tokens of a sketch
LEAST = 1e-12  # probabilities below count as this much, as in KLASS's code

SKETCH = np.dtype([("token", np.int32), ("logprob", np.float32)])
NO_SKETCH = np.array((0, -np.inf), SKETCH)  # of probability 0


class History:
    """The last `depth` sketches of each of `length` canvas positions of one request."""

    def __init__(self, length: int, depth: int) -> None:
        self._depth = depth
        self._seen = np.zeros(length, np.intp)
        self._sketches = whole_rows(np.full((length * depth, LIKELY), NO_SKETCH, SKETCH))


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
        sketches = np.empty((len(view.positions), LIKELY), SKETCH)
        sketches["token"][:, :ranks], sketches["logprob"][:, :ranks] = view.ranked, view.logprobs
        sketches[:, ranks:] = NO_SKETCH
        packed = whole_rows(sketches)
        rows = view.positions * self._depth + self._seen % self._depth
        bounds = zip(histories, view.requests.starts.tolist(), view.requests.ends.tolist(), strict=True)
        for history, start, end in bounds:
            history._sketches[rows[start:end]] = packed[start:end]
        self._seen = self._seen + 1
        view.scatter([history._seen for history in histories], self._seen)

    def divergence(self, at: Longs, newer: Longs, older: Longs) -> Floats:
        """KL in nats of the sketches `newer` [m] forwards ago (0: the last one) from those `older` [m] forwards ago,
        [m, n] at the indices `at` [n] of the view; infinite where there have been fewer forwards."""
        seen = self._seen[at]
        now, then = self._sketches(at, np.concatenate((newer, older)))
        p, likely_then = _probabilities(now), _probabilities(then)
        same = now["token"][..., None] == then["token"][..., None, :]
        q = np.matmul(same.astype(np.float32), likely_then[..., None])[..., 0]
        p[q == 0] = 0  # in the bucket
        rest_p, rest_q = 1 - p.sum(-1), 1 - q.sum(-1)
        return np.where(seen > older[:, None], _terms(p, q).sum(-1) + _terms(rest_p, rest_q), np.float32(np.inf))

    def _sketches(self, at: Longs, ago: Longs) -> tuple[Array, Array]:
        """The two halves of the sketches [m, n, likely] as they were `ago` [m] forwards."""
        view = self._view
        rows = view.positions[at] * self._depth + (self._seen[at] - 1 - ago[:, None]) % self._depth
        bounds = pairwise(view.requests.index[at].searchsorted(np.arange(len(self._histories) + 1)).tolist())
        parts = zip(self._histories, bounds, strict=True)
        found = [history._sketches.take(rows[:, start:end]) for history, (start, end) in parts if start < end]
        first, second = np.split(np.concatenate(found, axis=1)[..., None].view(SKETCH), 2)
        return first, second


def _probabilities(sketches: Array) -> Floats:
    found: Floats = np.exp(sketches["logprob"].astype(np.float64)).astype(np.float32)
    return found


def _terms(p: Floats, q: Floats) -> Floats:
    terms: Floats = np.maximum(p, 0) * np.log(np.maximum(p, LEAST) / np.maximum(q, LEAST))
    return terms
