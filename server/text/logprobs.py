"""Log-probabilities of an answer's tokens, and the likeliest alternatives, as text."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

from ...scheduler import Scored
from .tokenizer import Tokenizer

LEAST = -9999.0  # OpenAI's value for a probability of 0


class Token(NamedTuple):
    """A token's own text, with U+FFFD for a part of a character, its bytes, and its id. Special tokens have neither
    text nor bytes."""

    text: str
    raw: bytes
    id: int


class Place(NamedTuple):
    """The range `[start, end)` of a token's text, in characters. Tokens that share a character share their place."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of the answer, at `offset` in characters, with its log-probability at `step`: the request's own step that
    committed it, counted from 0. `ranked` are the likeliest tokens at that step, in falling order. The log-probability
    of a token that was not scored is not a number. `rank` is that of a token that was given, from 1 on."""

    token: Token
    logprob: float
    step: int
    offset: int
    ranked: tuple[tuple[Token, float], ...]
    rank: int = 0

    @property
    def known(self) -> bool:
        return not math.isnan(self.logprob)


class LogprobReader:
    """Joins the scores of an answer's tokens to their places in its text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._rows: deque[tuple[float, int, list[int], list[float], int]] = deque()  # of tokens without a place so far
        self._read = 0

    def read(self, ids: Sequence[int], places: Sequence[Place], scored: Scored | None) -> tuple[TokenLogprob, ...]:
        """Return the next of the answer's tokens `ids`, one for each of `places`. `scored` are the tokens of the last
        step."""
        if scored is not None:
            given = repeat(0, len(scored.steps)) if scored.token_ranks is None else scored.token_ranks.tolist()
            columns = [values.tolist() for values in scored[:4]]
            self._rows += zip(*columns, given, strict=True)
        start, self._read = self._read, self._read + len(places)
        rows = [
            (token, place, *self._rows.popleft()) for token, place in zip(ids[start : self._read], places, strict=True)
        ]
        return tuple(
            TokenLogprob(
                token=token_of(self._tokenizer, token),
                logprob=_finite(logprob),
                step=step,
                offset=place.start,
                ranked=tuple(
                    (token_of(self._tokenizer, other), _finite(score))
                    for other, score in zip(ranked, ranked_logprobs, strict=True)
                    if score != -math.inf  # a banned token is no alternative
                ),
                rank=rank,
            )
            for token, place, logprob, step, ranked, ranked_logprobs, rank in rows
        )


def token_of(tokenizer: Tokenizer, token: int) -> Token:
    return Token(tokenizer.pieces[token], tokenizer.token_bytes(token), token)


def mean_logprob(scores: Sequence[TokenLogprob]) -> float:
    """The score by which the best of several answers is chosen. An empty answer is the worst."""
    return sum(score.logprob for score in scores) / len(scores) if scores else LEAST


def _finite(logprob: float) -> float:
    return max(logprob, LEAST) if not math.isnan(logprob) else LEAST
