"""Keeps an answer within a grammar: a `Constraint` says what may come next, and tokens commit from left to right.

The device commits nothing of such an answer. It proposes a token at every open position; at the first of them only what
the grammar allows. That proposal commits. The proposals after it commit too, one by one, as long as each passes the
commit rule and the grammar accepts it. Tokens that the grammar leaves no choice about commit without a forward.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple, Protocol

from .contract import DeviceCommitRule, Ints, Restriction, Row, Span, StepResult
from .decoding.boundaries import Bools
from .decoding.vocabulary import Vocabulary
from .logprobs import FORCED


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

    def accept(self, token: int, room: int) -> bool:
        """Append `token`, which is no end token, where `room` positions are left. Return False, and append nothing, if
        it may not come, or if there would be no room for an end after it."""

    def forced(self, room: int) -> list[int]:
        """The tokens that must come next, with `room` positions left: those without an alternative, or a short way to
        the end once there was no room for another token. The caller still has to `accept` them."""


class Continuation(NamedTuple):
    """The next tokens of an answer, and the place of each in the step's result, or `FORCED`. With `ends`, the last of
    them is an end token."""

    tokens: list[int]
    found: list[int]
    ends: bool = False


class GrammarGuide:
    """Leads the answer of one request along its constraint."""

    def __init__(self, constraint: Constraint, vocabulary: Vocabulary, length: int) -> None:
        """`length` are the positions of the canvas."""
        self.constraint = constraint
        self._length = length
        self._ends: Bools = vocabulary.is_end
        self._allowed: Ints | None = None  # after the text so far, once computed
        self._stuck = False
        self._spans: tuple[Span, ...] = ()  # of the next step, with the rules of the decoder

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

    def restrict(self, row: Row, position: int) -> Row:
        """`row` without commits, and with a restriction of the first open `position`, absolute."""
        if self._allowed is None:
            self._allowed = self.constraint.allowed()
        self._spans = row.spans
        spans = tuple(span._replace(rule=_without_commits(span.rule)) for span in row.spans)
        return row._replace(spans=spans, restriction=Restriction(position, self._allowed))

    def take(self, first: int, frontier: int, result: StepResult, part: slice, chosen: Bools | None) -> Continuation:
        """The tokens from canvas position `frontier` on, of what a step has proposed.

        `part` of the result begins at canvas position `first`. `chosen` are the positions of it that a host commit rule
        commits; None: the decoder's rule is one of the device.
        """
        tokens, found, drawn = list[int](), list[int](), 0
        ends = False
        shift = part.start - first  # from a canvas position to a place in the result
        while not self.failed and (place := frontier + len(tokens) + shift) < part.stop:
            token = int(result.proposals[place])
            if drawn and not self._passes(drawn + 1, result, place, part.start, chosen):
                break
            if self._ends[token]:
                if self.constraint.complete:
                    ends = True
                    tokens.append(token)
                    found.append(place)
                break
            at = frontier + len(tokens)
            if not self.constraint.accept(token, self._length - at):
                closing = self._force(at, self._length)  # nothing, unless it is time to close
                tokens += closing
                found += [FORCED] * len(closing)
                break
            tokens.append(token)
            found.append(place)
            drawn += 1
            forced = self._force(at + 1, self._length)
            tokens += forced
            found += [FORCED] * len(forced)
            expected = result.proposals[place + 1 : part.stop][: len(forced)].tolist()
            if expected != forced[: len(expected)]:
                break  # the proposals after them belong to another text
        if self.constraint.finished and not ends and frontier + len(tokens) < self._length:
            ends = True
            tokens.append(int(self._ends.argmax()))
            found.append(FORCED)
        self._stuck = not tokens  # and it would be for ever
        if tokens:
            self._allowed = None
        return Continuation(tokens, found, ends)

    def _passes(self, rank: int, result: StepResult, place: int, first: int, chosen: Bools | None) -> bool:
        """True if the decoder commits the proposal at `place` in the result as the `rank`-th token of the step. The
        request's positions begin at `first` in the result."""
        if chosen is not None:
            return bool(chosen[place - first])
        position = self._spans[0].start + place - first
        span = next(span for span in self._spans if position < span.end)
        rule = span.rule
        if rank <= rule.sure or (rule.last_free and position == span.end - 1):
            return True
        measured = result.confidence if rule.plain or result.measured is None else result.measured
        return float(measured[place]) >= rule.threshold - rule.factor / (rank + 1)

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


def _without_commits(rule: DeviceCommitRule) -> DeviceCommitRule:
    return replace(rule, sure=0, threshold=math.inf, factor=0.0, last_free=False)
