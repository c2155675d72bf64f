"""Keeps an answer within a grammar: a `Constraint` says what may come next.

The device commits by the decoder's own rule, in any order, and reports what it has found. At the first open position
its proposal is limited to the grammar; that one settles. The tokens after it settle too, one by one, as long as they
have committed and the grammar accepts them. Tokens that the grammar leaves no choice about settle without a forward.
What has committed later in the canvas is a draft: the network sees it, and it settles when its turn comes, or becomes a
mask again.

An end token is proposed even where the answer may not end yet. Instead of it comes the token that closes what is open:
a network that has nothing more to say does not have to go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np

from .contract import Doubles, Ints, Restriction, Row, StepResult
from .decoding.boundaries import Bools, Longs
from .decoding.vocabulary import Vocabulary
from .logprobs import DRAFTED, FORCED


class Constraint(Protocol):
    """A grammar, and its state after the text of an answer so far."""

    @property
    def name(self) -> str:
        """The request parameter that set it, for messages."""

    @property
    def failed(self) -> str:
        """The reason why no next token can be found; empty while it can."""

    @property
    def complete(self) -> bool:
        """True if the answer may end here."""

    @property
    def finished(self) -> bool:
        """True if the answer must end here."""

    @property
    def closing(self) -> bool:
        """True once `forced` has cut the answer short, for want of room."""

    def allowed(self) -> Ints:
        """The tokens that may come next, the end of the answer among them, as `Restriction.words`."""

    def closer(self, words: Ints) -> int | None:
        """The one of the allowed `words` that comes instead of an end, where the answer may not end; None: an end must
        not be proposed."""

    def accept(self, token: int, room: int) -> bool:
        """Append `token`, which is no end token, where `room` positions are left. Return False, and append nothing, if
        it may not come, or if there would be no room for an end after it."""

    def forced(self, room: int) -> list[int]:
        """The tokens that must come next, with `room` positions left: those without an alternative, or a short way to
        the end once there was no room for another token. The caller still has to `accept` them."""


class Continuation(NamedTuple):
    """The next tokens of an answer, and the place of each in the step's result, or `FORCED` or `DRAFTED`. With `ends`,
    the last of them is an end token. There are new drafts at the canvas positions `drafted` [any]."""

    tokens: list[int]
    found: list[int]
    ends: bool = False
    drafted: Longs = np.zeros(0, np.int64)


class _Settling:
    """The tokens that settle in a step, as a `Continuation` has them. It `goes_on` if an open position ends them."""

    def __init__(self) -> None:
        self.tokens, self.found = list[int](), list[int]()
        self.ends = self.goes_on = False

    def add(self, token: int, found: int) -> None:
        self.tokens.append(token)
        self.found.append(found)

    def force(self, tokens: list[int]) -> None:
        self.tokens += tokens
        self.found += [FORCED] * len(tokens)

    def end(self, token: int, found: int) -> None:
        self.add(token, found)
        self.ends = True


class GrammarGuide:
    """Leads the answer of one request along its constraint."""

    def __init__(self, constraint: Constraint, vocabulary: Vocabulary, length: int, least: float = 0.0) -> None:
        """`length` are the positions of the canvas. Drafts need at least the confidence `least`."""
        self.constraint = constraint
        self.drafts: Ints = np.full(length, vocabulary.mask_id, np.int32)  # by canvas position
        self._length, self._least = length, least
        self._mask_id = vocabulary.mask_id
        self._ends: Bools = vocabulary.is_end
        self._end_ids = vocabulary.ends
        self._allowed: Ints | None = None  # after the text so far, once computed
        self._closer: int | None = None  # comes instead of an end
        self._stuck = False

    @property
    def failed(self) -> bool:
        return self._stuck or bool(self.constraint.failed)

    @property
    def problem(self) -> str:
        """The reason why the request has failed."""
        return f"{self.constraint.name}: {self.constraint.failed or 'no token goes on from here'}"

    def begin(self) -> Continuation:
        """The forced first tokens. At least one position stays open: a lane needs one."""
        tokens = self._force(0, self._length - 1)
        return Continuation(tokens, [FORCED] * len(tokens))

    def restrict(self, row: Row, origin: int, frontier: int) -> Row:
        """`row` with the drafts, and with a restriction of the first open position, `frontier` on the canvas, which
        begins at `origin`."""
        if self._allowed is None:
            words = self.constraint.allowed()
            self._closer = None if self.constraint.complete else self.constraint.closer(words)
            self._allowed = words if self._closer is None else _with(words, self._end_ids)
        if row.host_tokens is not None:
            start, end = max(0, row.start - origin), row.end - origin
            drafts = self.drafts[start:end]
            canvas = row.host_tokens[start + origin - row.start :][: len(drafts)]
            np.copyto(canvas, drafts, where=drafts != self._mask_id)
        return row._replace(restriction=Restriction(origin + frontier, self._allowed))

    def take(self, first: int, frontier: int, result: StepResult, part: slice, chosen: Bools | None) -> Continuation:
        """The tokens from canvas position `frontier` on, of what a step has found.

        `part` of the result begins at canvas position `first`. `chosen` are the positions of it that a host commit rule
        commits, which leaves no drafts; None: the decoder's rule is one of the device.
        """
        proposals = result.proposals[part]
        canvas = result.tokens[part] if chosen is None else np.where(chosen, proposals, self._mask_id)
        text = self._follow(canvas, proposals, first, frontier, part.start)
        if self.constraint.finished and not text.ends and frontier + len(text.tokens) < self._length:
            text.end(int(self._ends.argmax()), FORCED)
        self._stuck = not text.tokens  # and it would be for ever
        if text.tokens:
            self._allowed = None
        after = frontier + len(text.tokens) + 1 - first  # the position before it stays open
        rest = slice(after, None if text.goes_on and chosen is None else after)
        drafted = self._draft(first + after, canvas[rest], result.confidence[part][rest])
        return Continuation(text.tokens, text.found, text.ends, drafted)

    def _follow(self, canvas: Ints, proposals: Ints, first: int, frontier: int, start: int) -> _Settling:
        """The tokens that settle, of what has committed (`canvas` [n]) and what was proposed (`proposals` [n]) from
        position `first` of the canvas, and `start` of the result, on: up to a mask, an end, or what the grammar does
        not continue with."""
        seen = np.where(canvas == self._mask_id, proposals, canvas)
        text = _Settling()
        while not self.failed and (at := frontier + len(text.tokens) - first) < len(canvas):
            token, position = int(canvas[at] if text.tokens else proposals[at]), first + at
            if token == self._mask_id:
                text.goes_on = True
                break
            closes = bool(self._ends[token]) and not self.constraint.complete
            if closes:
                if text.tokens or self._closer is None:
                    break
                token = self._closer
            elif self._ends[token]:
                text.end(token, start + at)
                break
            if not self.constraint.accept(token, self._length - position):
                text.force(self._force(position, self._length))  # nothing, unless it is time to close
                break
            drafted = token == self.drafts[position]
            text.add(token, FORCED if closes else DRAFTED if drafted else start + at)
            forced = self._force(position + 1, self._length)
            text.force(forced)
            expected = seen[at + 1 :][: len(forced)].tolist()
            if closes or expected != forced[: len(expected)]:
                break  # what follows belongs to another text
        return text

    def _draft(self, start: int, canvas: Ints, confidence: Doubles) -> Longs:
        """Replace the drafts by the tokens `canvas` [n] from position `start` on, without end tokens, and without those
        that have just committed with too little confidence. Returns the positions of new drafts."""
        old = canvas == self.drafts[start : start + len(canvas)]
        kept = ~self._ends[canvas] & (old | (confidence >= self._least))
        self.drafts.fill(self._mask_id)
        self.drafts[start : start + len(canvas)] = np.where(kept, canvas, self._mask_id)
        return np.flatnonzero(kept & ~old) + start

    def _force(self, frontier: int, limit: int) -> list[int]:
        """The forced tokens from canvas position `frontier` on, before position `limit`."""
        written: list[int] = []
        while tokens := self.constraint.forced(self._length - frontier - len(written)):
            for token in tokens:
                at = frontier + len(written)
                if at >= limit or not self.constraint.accept(token, self._length - at):
                    return written
                written.append(token)
        return written


def _with(words: Ints, tokens: Iterable[int]) -> Ints:
    """`words` with the bits of `tokens` set."""
    found = words.copy()
    bits = found.view(np.uint32)
    for token in tokens:
        bits[token // 32] |= np.uint32(1 << token % 32)
    return found
