"""Keeps, of each committed token, its log-probability at the step that committed it, for those who ask."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .contract import Floats, Ints, Scores
from .decoding.boundaries import Longs


class Scored(NamedTuple):
    """Some committed tokens of an answer: the log-probability of each [n], the request's own step that committed it
    [n], and the likeliest tokens at that step [n, ranks] in falling order, with theirs [n, ranks]."""

    logprobs: Floats
    steps: Ints
    ranked: Ints
    ranked_logprobs: Floats

    def part(self, start: int, end: int) -> Scored:
        logprobs, steps, ranked, ranked_logprobs = self
        here = slice(start, end)
        return Scored(logprobs[here], steps[here], ranked[here], ranked_logprobs[here])


class Scorebook:
    """The scores of one answer of up to `length` tokens, with `ranks` likeliest ones each."""

    def __init__(self, length: int, ranks: int) -> None:
        self._ranks = ranks
        self._book = Scored(
            np.zeros(length, np.float32),
            np.zeros(length, np.int32),
            np.zeros((length, ranks), np.int32),
            np.zeros((length, ranks), np.float32),
        )

    def take(self, places: Longs, scores: Scores, found: Longs, step: int) -> None:
        """What has just committed at the canvas positions `places` [n] is at `found` [n] in the step's `scores`."""
        book = self._book
        book.logprobs[places] = scores.chosen[found]
        book.steps[places] = step
        book.ranked[places] = scores.ranked[found, : self._ranks]
        book.ranked_logprobs[places] = scores.logprobs[found, : self._ranks]

    def certain(self, place: int, token: int, step: int) -> None:
        """At the canvas position `place` there was no choice but `token`."""
        book = self._book
        book.logprobs[place] = 0
        book.steps[place] = step
        book.ranked[place] = token
        book.ranked_logprobs[place] = [0, *[-np.inf] * (self._ranks - 1)][: self._ranks]

    def part(self, start: int, end: int) -> Scored:
        """Of the canvas positions `[start, end)`; committed, they do not change any more."""
        return self._book.part(start, end)
