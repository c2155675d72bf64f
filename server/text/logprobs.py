"""Tells in text what each token of an answer cost its committing step: log-probabilities, and what else was likely."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ...scheduler import Scored

LEAST = -9999.0  # OpenAI's word for a probability of 0


class Token(NamedTuple):
    """A token's own text, with U+FFFD for parts of characters, and its own bytes. Special tokens have neither."""

    text: str
    raw: bytes


class Place(NamedTuple):
    """Where a token's text is in the answer's: `[start, end)` in characters. Tokens that share a character share it."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of the answer, at its `offset` in characters: its log-probability at `step`, which is the request's own
    step that committed it, counted from 0, and the likeliest tokens at that step with theirs, in falling order."""

    token: Token
    logprob: float
    step: int
    offset: int
    ranked: tuple[tuple[Token, float], ...]


class Tokens(Protocol):
    """What is needed of `text.Tokenizer`."""

    @property
    def pieces(self) -> Sequence[str]: ...

    def token_bytes(self, token: int) -> bytes: ...


class LogprobReader:
    """Joins the scores of an answer's tokens to their places in its text."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._rows: deque[tuple[float, int, list[int], list[float]]] = deque()  # of tokens without a place so far
        self._read = 0

    def read(self, ids: Sequence[int], places: Sequence[Place], scored: Scored | None) -> tuple[TokenLogprob, ...]:
        """The next of the answer's tokens `ids`, one for each of `places`; `scored` are those of the last step."""
        if scored is not None:
            self._rows += zip(*(values.tolist() for values in scored), strict=True)
        start, self._read = self._read, self._read + len(places)
        columns = [
            (token, place, *self._rows.popleft()) for token, place in zip(ids[start : self._read], places, strict=True)
        ]
        return tuple(
            TokenLogprob(
                token=self._token(token),
                logprob=_finite(logprob),
                step=step,
                offset=place.start,
                ranked=tuple(
                    (self._token(other), _finite(chance))
                    for other, chance in zip(ranked, commit_probability, strict=True)
                    if chance != -math.inf  # what could not come is no alternative
                ),
            )
            for token, place, logprob, step, ranked, commit_probability in columns
        )

    def _token(self, token: int) -> Token:
        return Token(self._tokens.pieces[token], self._tokens.token_bytes(token))


def mean_logprob(scores: Sequence[TokenLogprob]) -> float:
    """By which the best of several answers is chosen; an empty answer is the worst."""
    return sum(score.logprob for score in scores) / len(scores) if scores else LEAST


def _finite(logprob: float) -> float:
    return max(logprob, LEAST) if not math.isnan(logprob) else LEAST
