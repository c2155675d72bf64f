"""Holds an answer to a grammar: what may come next is asked of a `Constraint`, and tokens commit from left to right.

The device commits nothing of such an answer. It proposes at every open position, at the first of them only what the
grammar allows. That proposal commits; so do those behind it, one by one, as long as each passes the commit rule and the
grammar takes it; and so does, without a call, what the grammar leaves no choice about.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from .contract import (
    DeviceCommitRule,
    Ints,
    Restriction,
    Row,
    Span,
    StepResult,
)
from .decoding.lane_tree import Layout
from .decoding.params import ParamError
from .decoding.resolve import Decoder
from .decoding.vocabulary import END, Vocabulary

if TYPE_CHECKING:
    from .sequence import Sequence


class Constraint(Protocol):
    """A grammar and what an answer has said so far of it."""

    @property
    def name(self) -> str:
        """Who asked for it: a parameter's name, for messages."""
        ...

    @property
    def failed(self) -> str:
        """Why nothing can be said of the next token, empty while it can."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the answer may end here."""
        ...

    @property
    def finished(self) -> bool:
        """Whether it must."""
        ...

    @property
    def closing(self) -> bool:
        """Whether `forced` has cut the answer short, for want of room."""
        ...

    def allowed(self) -> Ints:
        """The tokens that may come next, the end of the answer among them, as a `Restriction` has them."""
        ...

    def accept(self, token: int, room: int) -> bool:
        """Say `token`, which ends no answer, as the first of `room` more at most. False: it may not come, or behind it
        there would not be room for an end; it has not been said."""
        ...

    def forced(self, room: int) -> list[int]:
        """Tokens that come next whatever is asked, with `room` for so many: what is left no choice about, or, once
        there has not been room for another token, a short way to the end. They are still to be accepted."""
        ...


class Guide:
    """Leads one request along its constraint."""

    def __init__(self, constraint: Constraint, decoder: Decoder, vocabulary: Vocabulary) -> None:
        """Raises `ParamError` if the decoder does what a constraint cannot follow."""
        name = constraint.name
        if decoder.layout is Layout.ISOLATED:
            raise ParamError(
                "siblings", f"siblings 'isolated' and {name} exclude each other: it has one lane at a time"
            )
        if decoder.layout is Layout.ENSEMBLE:
            raise ParamError("decoder", f"decoder {decoder.name!r} and {name} exclude each other: its branches differ")
        if not decoder.early_stop:
            raise ParamError(
                "early_stop", f"early_stop false and {name} exclude each other: a grammar says where to end"
            )
        self._constraint = constraint
        self._ends = (vocabulary.classes & END) != 0
        self._allowed: Ints | None = None
        self._stuck = False
        self._asked: tuple[Span, ...] = ()  # spans of the next step as the decoder wants them

    @property
    def failed(self) -> bool:
        return self._stuck or bool(self._constraint.failed)

    @property
    def finished(self) -> bool:
        return self._constraint.finished

    @property
    def closing(self) -> bool:
        return self._constraint.closing

    @property
    def name(self) -> str:
        return self._constraint.name

    @property
    def problem(self) -> str:
        """Why the request has failed."""
        return f"{self.name}: {self._constraint.failed or 'no token goes on from here'}"

    def begin(self, sequence: Sequence) -> None:
        """The answer opens with what the grammar forces, but one position at least stays open: a lane needs one."""
        self._force(sequence, len(sequence.canvas) - 1)

    def restrict(self, row: Row, sequence: Sequence) -> Row:
        """`row` without commits, and with a restriction of the first open position."""
        if self._allowed is None:
            self._allowed = self._constraint.allowed()
        self._asked = row.spans
        held = tuple(replace(span, rule=_hold(span.rule)) for span in row.spans)
        restriction = Restriction(sequence.prompt_length + sequence.frontier, self._allowed)
        return replace(row, spans=held, restriction=restriction)

    def take(self, sequence: Sequence, result: StepResult, part: slice) -> None:
        """Commits what a step has proposed, `part` of its result, as far as the commit rule and the grammar go."""
        first = self._asked[0].start - sequence.prompt_length - part.start  # canvas position of the result's start
        end = first + part.stop
        drawn: list[int] = []
        before = sequence.frontier
        while not self.failed and (at := sequence.frontier) < end:
            token = int(result.proposals[at - first])
            if drawn and not self._passes(sequence, len(drawn) + 1, result, at - first, part.start):
                break
            if self._ends[token]:
                if self._constraint.complete:
                    self._end(sequence, token)
                break
            if not self._constraint.accept(token, len(sequence.canvas) - at):
                self._force(sequence, len(sequence.canvas))  # nothing, unless it is time to close
                break
            self._say(sequence, token)
            drawn.append(at)
            forced = self._force(sequence, len(sequence.canvas))
            expected = result.proposals[at + 1 - first : end - first][: len(forced)].tolist()
            if expected != forced[: len(expected)]:
                break  # what has been proposed behind them is of another text
        if self._constraint.finished and sequence.end_at > sequence.frontier < len(sequence.canvas):
            self._end(sequence, int(self._ends.argmax()))
        self._stuck = sequence.frontier == before  # it would be so for ever
        if sequence.scorebook is not None and result.scores is not None:
            places = np.array(drawn, np.int64)
            sequence.scorebook.take(places, result.scores, places - first, sequence.steps)

    def _passes(self, sequence: Sequence, rank: int, result: StepResult, place: int, first: int) -> bool:
        """Whether the decoder commits what is proposed at `place` in the result, where the request's positions begin
        at `first`, as the `rank`-th token of the step."""
        position = self._asked[0].start + place - first
        span = next(span for span in self._asked if position < span.end)
        rule, judging = span.rule, sequence.judging
        if judging is not None:
            return bool(judging.chosen[place - first])
        if rank <= rule.sure or (rule.last_free and position == span.end - 1):
            return True
        judged = result.confidence if rule.plain or result.measured is None else result.measured
        return float(judged[place]) >= rule.threshold - rule.factor / (rank + 1)

    def _force(self, sequence: Sequence, limit: int) -> list[int]:
        """Writes what is forced, before canvas position `limit`."""
        written: list[int] = []
        size = len(sequence.canvas)
        while tokens := self._constraint.forced(size - sequence.frontier):
            for token in tokens:
                if sequence.frontier >= limit or not self._constraint.accept(token, size - sequence.frontier):
                    return written
                if sequence.scorebook is not None:
                    sequence.scorebook.certain(sequence.frontier, token, sequence.steps)
                self._say(sequence, token)
                written.append(token)
        return written

    def _say(self, sequence: Sequence, token: int) -> None:
        sequence.canvas[sequence.frontier] = token
        sequence.frontier += 1
        self._allowed = None

    def _end(self, sequence: Sequence, token: int) -> None:
        sequence.end_at = sequence.frontier
        sequence.tree.end_at(sequence.frontier)
        self._say(sequence, token)


def _hold(rule: DeviceCommitRule) -> DeviceCommitRule:
    """`rule` with its measure, but nothing commits."""
    return replace(rule, sure=0, threshold=math.inf, factor=0.0, last_free=False)
