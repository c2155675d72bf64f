"""Log-probabilities of committed tokens, at the step that committed each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .contract import Floats, Ints, Scores
from .decoding.boundaries import Longs

# In the stead of a token's place in a step's result:
FORCED = -1  # it was the only one possible
DRAFTED = -2  # an earlier step has committed it, ahead of its turn


class Scored(NamedTuple):
    """Scores of n committed tokens: the log-probability of each [n], the request's own step that committed it [n], and
    the likeliest tokens of that step [n, ranks] in falling order, with their log-probabilities [n, ranks].
    `token_ranks` [n] are those of tokens that were given, from 1 on."""

    logprobs: Floats
    steps: Ints
    ranked: Ints
    ranked_logprobs: Floats
    token_ranks: Ints | None = None


class Scorebook:
    """The scores of one answer of up to `length` tokens, with `ranks` likeliest tokens each."""

    def __init__(self, length: int, ranks: int) -> None:
        self._ranks = ranks
        self._book = Scored(
            np.zeros(length, np.float32),
            np.zeros(length, np.int32),
            np.zeros((length, ranks), np.int32),
            np.zeros((length, ranks), np.float32),
        )

    def take(self, positions: Longs, tokens: Ints, found: Longs, scores: Scores | None, step: int) -> None:
        """`tokens` [n] have committed at the canvas `positions` [n] in `step`. Their scores are at `found` [n] in
        `scores`; a `FORCED` token has probability 1, a `DRAFTED` one is in the book."""
        logprobs, steps, ranked, ranked_logprobs, _ = self._book
        if (drafted := found == DRAFTED).any():  # scored already
            positions, tokens, found = positions[~drafted], tokens[~drafted], found[~drafted]
        steps[positions] = step
        forced = found == FORCED
        if forced.any():
            places = positions[forced]
            logprobs[places] = 0
            ranked[places] = tokens[forced][:, None]
            ranked_logprobs[places] = [0, *[-np.inf] * (self._ranks - 1)][: self._ranks]
            positions, found = positions[~forced], found[~forced]
        if scores is not None and len(positions):  # with none, scores may be as narrow as those of other requests
            logprobs[positions] = scores.chosen[found]
            ranked[positions] = scores.ranked[found, : self._ranks]
            ranked_logprobs[positions] = scores.logprobs[found, : self._ranks]

    def part(self, start: int, end: int) -> Scored:
        """The scores at canvas positions `[start, end)`. Those of committed tokens do not change any more."""
        logprobs, steps, ranked, ranked_logprobs, _ = self._book
        here = slice(start, end)
        return Scored(logprobs[here], steps[here], ranked[here], ranked_logprobs[here])
