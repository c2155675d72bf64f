"""Log-probabilities of an answer's tokens, and the likeliest alternatives, as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any, NamedTuple, overload

import numpy as np

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


class Logprobs(Sequence[TokenLogprob]):
    """Log-probabilities that are made anew whenever they are read. Kept, those of long texts would be millions of
    objects, at which Python's garbage collector looks while everybody waits."""

    __slots__ = ("_read", "_size")

    def __init__(self, size: int, read: Callable[[int], Iterator[TokenLogprob]]) -> None:
        """`read(start)` makes those from `start` on, of `size` in all."""
        self._size, self._read = size, read

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[TokenLogprob]:
        return self._read(0)

    @overload
    def __getitem__(self, at: int) -> TokenLogprob: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[TokenLogprob]: ...
    def __getitem__(self, at: int | slice) -> TokenLogprob | Sequence[TokenLogprob]:
        if isinstance(at, int):
            return next(self._read(range(self._size)[at]))
        start, end, step = at.indices(self._size)
        if step != 1:
            raise ValueError(f"log-probabilities are read one after another, not every {step}")
        size = max(0, end - start)
        return Logprobs(size, lambda skipped: islice(self._read(start + skipped), size - skipped))


def in_a_row(parts: Sequence[Sequence[TokenLogprob]]) -> Sequence[TokenLogprob]:
    """Those of consecutive parts of a text."""

    def read(start: int) -> Iterator[TokenLogprob]:
        for part in parts:
            if start < len(part):
                yield from part[start:]
            start = max(0, start - len(part))

    return Logprobs(sum(map(len, parts)), read)


class LogprobReader:
    """Joins the scores of an answer's tokens to their places in its text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._waiting: Scored | None = None  # of tokens without a place so far
        self._read = 0

    def read(self, ids: Sequence[int], places: Sequence[Place], scored: Scored | None) -> Sequence[TokenLogprob]:
        """Return the next of the answer's tokens `ids`, one for each of `places`. `scored` are the tokens of the last
        step."""
        waiting, count = self._waiting, len(places)
        if scored is not None:
            waiting = scored if waiting is None else _map(np.concatenate, waiting, scored)
        if not count:
            self._waiting = waiting
            return ()
        if waiting is None or len(waiting.logprobs) < count:
            raise ValueError(f"{count} tokens have a place, and not as many a log-probability")
        own = _map(lambda columns: columns[0][:count], waiting)
        rest = _map(lambda columns: columns[0][count:], waiting)
        self._waiting = rest if len(rest.logprobs) else None
        start, self._read = self._read, self._read + count
        tokens, offsets = ids[start : self._read], [place.start for place in places]

        def made(since: int) -> Iterator[TokenLogprob]:
            rest = _map(lambda columns: columns[0][since:], own)
            return _made(self._tokenizer, tokens[since:], offsets[since:], rest)

        return Logprobs(count, made)


def _map(change: Callable[[tuple[Any, ...]], Any], *scores: Scored) -> Scored:
    """Each column of `scores`, changed."""
    changed: list[Any] = [None if columns[0] is None else change(columns) for columns in zip(*scores, strict=True)]
    return Scored(*changed)


def _made(
    tokenizer: Tokenizer, tokens: Sequence[int], offsets: Sequence[int], scored: Scored
) -> Iterator[TokenLogprob]:
    given = repeat(0) if scored.token_ranks is None else scored.token_ranks.tolist()
    rows = zip(tokens, offsets, *(column.tolist() for column in scored[:4]), strict=True)
    for (token, offset, logprob, step, ranked, ranked_logprobs), rank in zip(rows, given, strict=False):
        likeliest = zip(ranked, ranked_logprobs, strict=True)
        yield TokenLogprob(
            token=token_of(tokenizer, token),
            logprob=_finite(logprob),
            step=step,
            offset=offset,
            # A banned token is no alternative.
            ranked=tuple((token_of(tokenizer, one), _finite(score)) for one, score in likeliest if score != -math.inf),
            rank=rank,
        )


def token_of(tokenizer: Tokenizer, token: int) -> Token:
    return Token(tokenizer.pieces[token], tokenizer.token_bytes(token), token)


def mean_logprob(scores: Sequence[TokenLogprob]) -> float:
    """The score by which the best of several answers is chosen. An empty answer is the worst."""
    return sum(score.logprob for score in scores) / len(scores) if scores else LEAST


def _finite(logprob: float) -> float:
    return max(logprob, LEAST) if not math.isnan(logprob) else LEAST
