"""Where a lane may fork: at the ends of sentences in prose and of statements in code, or by a rule for comparison.

All of it is array arithmetic over the positions of all lanes of a step at once. `packed` has, for each request of the
step, the tokens from the start of its first live lane to the end of its last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from ..contract import Ints
from .vocabulary import (
    BARE,
    COMMA,
    DIGIT,
    DOUBLE,
    END,
    FENCE,
    LINE,
    PAUSE,
    PERIOD,
    SENTENCE,
    SINGLE,
    STOP,
    UNFINISHED,
    Vocabulary,
)

Bools = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]

STRIDE = 16  # positions between forks of the fixed-stride rule, as in the paper's ablation


class Boundary(IntEnum):
    """The positions that end a part of an answer which may be refined on its own."""

    AUTO = 0  # prose, and code within a fenced block
    PROSE = 1
    CODE = 2
    COMMA = 3  # AUTO, and commas
    STRIDE = 4  # every 16th position of a lane
    STABLE = 5  # none: lanes fork only where proposals are stable
    PERIOD = 6  # full stops alone, as in the paper, which are not in numbers
    PERIOD_COMMA = 7  # full stops and commas, as in the paper's ablation

    def known_to(self, vocabulary: Vocabulary) -> bool:
        """True if the tokenizer has any token for it."""
        if self in (Boundary.STRIDE, Boundary.STABLE):
            return True
        return vocabulary.has(_KINDS.get(self, SENTENCE | LINE))


_KINDS = {Boundary.CODE: LINE, Boundary.PERIOD: STOP, Boundary.PERIOD_COMMA: STOP | PAUSE}  # where not the usual ones


@dataclass(frozen=True, slots=True)
class Nesting:
    """The brackets, quotes and code block that are open where a request's first live lane starts.

    With `code_only` fences begin a new block, but nothing is prose. With `bare` the line has only digits so far.
    """

    in_code: bool = False
    code_only: bool = False
    brackets: int = 0
    quotes: int = 0  # double quotes
    apostrophes: int = 0  # single quotes in this line
    bare: bool = True

    @classmethod
    def of(cls, boundary: Boundary, prompt: Ints, vocabulary: Vocabulary) -> Nesting:
        """The nesting of an empty answer. It may go on in a code block that its `prompt` has opened since the last end
        of a turn."""
        if boundary is Boundary.CODE:
            return cls(in_code=True, code_only=True)
        turns = np.flatnonzero(vocabulary.classes[prompt] & END)
        nesting = cls().after(prompt[turns[-1] + 1 :] if len(turns) else prompt, vocabulary)
        return nesting if nesting.in_code else cls()

    def after(self, tokens: Ints, vocabulary: Vocabulary) -> Nesting:
        """The nesting after `tokens`, which come next."""
        if not len(tokens):
            return self
        classes = vocabulary.classes[tokens]
        if not self.in_code and not self.bare and not np.bitwise_or.reduce(classes) & (FENCE | LINE):
            return self  # a line of prose goes on
        fences, lines = np.flatnonzero(classes & FENCE), np.flatnonzero(classes & LINE)
        in_code = self.code_only or self.in_code ^ bool(len(fences) % 2)
        block = classes[fences[-1] + 1 :] if len(fences) else classes
        line = classes[lines[-1] + 1 :] if len(lines) else classes
        fresh = bool(len(fences)) or not in_code
        quoted = classes[max([-1, *fences[-1:], *lines[-1:]]) + 1 :]
        started = (tokens[fences[-1] + 1 :] if len(fences) else tokens) if in_code else tokens[:0]
        return Nesting(
            in_code=in_code,
            code_only=self.code_only,
            brackets=(0 if fresh else self.brackets) + int(vocabulary.brackets[started].sum()),
            quotes=(0 if fresh else self.quotes) + (int(np.count_nonzero(block & DOUBLE)) if in_code else 0),
            apostrophes=(0 if fresh or len(lines) else self.apostrophes)
            + (int(np.count_nonzero(quoted & SINGLE)) if in_code else 0),
            bare=bool((line & DIGIT).all()) and (self.bare or bool(len(lines))),
        )


@dataclass(frozen=True, slots=True)
class Packed:
    """Tokens of all requests of a step, end to end; `starts` [requests] are their first positions."""

    tokens: Ints
    starts: Longs
    rules: Sequence[Boundary]
    nesting: Sequence[Nesting]

    @property
    def sizes(self) -> Longs:
        return np.diff(self.starts, append=len(self.tokens))

    def spread(self, per_request: Sequence[int]) -> Longs:
        """Repeat a number of each request at all its positions."""
        return np.repeat(np.asarray(per_request, np.int64), self.sizes)


def boundaries(packed: Packed, lane_offset: Longs, vocabulary: Vocabulary) -> Bools:
    """[positions] where a part ends by the request's rule. `lane_offset` [positions] counts from a lane's start."""
    classes = vocabulary.classes[packed.tokens]
    masked = packed.tokens == vocabulary.mask_id
    rules = packed.spread(packed.rules)
    found: Bools = (classes & (SENTENCE | LINE)) != 0
    found |= ((classes & COMMA) != 0) & (rules == Boundary.COMMA)
    for rule in (Boundary.PERIOD, Boundary.PERIOD_COMMA):
        found = np.where(rules == rule, (classes & _KINDS[rule]) != 0, found)
    found &= ~_in_numbers(packed, classes, masked)
    in_code = _in_code(packed, classes) & ((rules == Boundary.AUTO) | (rules == Boundary.COMMA))
    in_code |= rules == Boundary.CODE
    if in_code.any():
        found = np.where(in_code, _statement_ends(packed, classes, masked, in_code, vocabulary), found)
    stride = ~masked & ((lane_offset + 1) % STRIDE == 0)
    found = np.where(rules == Boundary.STRIDE, stride, found)
    found &= rules != Boundary.STABLE
    return found


def _in_numbers(packed: Packed, classes: npt.NDArray[np.uint16], masked: Bools) -> Bools:
    """Full stops after a digit that are a decimal point (a digit or a mask follows) or belong to the number of a list's
    item (only digits before them on their line)."""
    digit = (classes & DIGIT) != 0
    stops: Bools = (classes & PERIOD) != 0
    stops[1:] &= digit[:-1]
    stops[packed.starts] = False
    if not stops.any():
        return stops
    decimal = np.zeros_like(stops)
    decimal[:-1] = digit[1:] | masked[1:]
    decimal[packed.starts[1:] - 1] = decimal[-1] = True  # what follows the last position may be a digit
    position = np.arange(len(classes))
    before_digits = np.maximum.accumulate(np.where(digit, -1, position))
    before_digits[1:] = before_digits[:-1]  # the last position before this one that is no digit
    opens_request = before_digits < packed.spread(packed.starts.tolist())
    bare = packed.spread([nesting.bare for nesting in packed.nesting]) == 1
    item = np.where(opens_request, bare, (classes[before_digits] & LINE) != 0)
    stops &= decimal | item
    return stops


def _in_code(packed: Packed, classes: npt.NDArray[np.uint16]) -> Bools:
    """[positions] between fences; the opening fence is outside, the closing one inside."""
    fences = ((classes & FENCE) != 0).astype(np.int64)
    before = np.cumsum(fences) - fences
    before -= packed.spread(before[packed.starts].tolist())
    inside: Bools = (before + packed.spread([nesting.in_code for nesting in packed.nesting])) % 2 == 1
    return inside


def _statement_ends(
    packed: Packed, classes: npt.NDArray[np.uint16], masked: Bools, in_code: Bools, vocabulary: Vocabulary
) -> Bools:
    """Line breaks in code where brackets and quotes are closed and the line needs no continuation.

    Counts run from the block's fence, single quotes from their line's start: they are apostrophes in comments. Masks
    count as nothing.
    """
    fence, line = (classes & FENCE) != 0, (classes & LINE) != 0
    nesting = packed.nesting
    brackets = _count(vocabulary.brackets[packed.tokens] * in_code, fence, [n.brackets for n in nesting], packed)
    quotes = _count(((classes & DOUBLE) != 0) & in_code, fence, [n.quotes for n in nesting], packed)
    apostrophes = _count((classes & SINGLE) != 0, fence | line, [n.apostrophes for n in nesting], packed)
    unfinished, bare = (classes & UNFINISHED) != 0, (classes & BARE) != 0
    before_unfinished, before_masked = np.zeros_like(bare), np.zeros_like(bare)
    before_unfinished[1:], before_masked[1:] = unfinished[:-1], masked[:-1]
    before_unfinished[packed.starts] = before_masked[packed.starts] = False  # a lane before them is complete
    continues = np.where(bare, before_unfinished | before_masked, unfinished)
    ends: Bools = line & ~continues & (brackets <= 0) & (quotes % 2 == 0) & (apostrophes % 2 == 0)
    return ends


def _count(values: npt.NDArray[np.generic], restarts: Bools, carried: list[int], packed: Packed) -> Longs:
    """Sums of `values` up to each position, from the one after the last restart before it, or from its request's first
    position and the number `carried` in."""
    position = np.arange(len(values))
    last = np.full(len(values), -1)
    last[1:] = np.maximum.accumulate(np.where(restarts, position, -1))[:-1]
    first = packed.spread(packed.starts.tolist())
    restarted = last >= first
    before = np.concatenate(([0], np.cumsum(values.astype(np.int64))))
    sums: Longs = before[1:] - before[np.where(restarted, last + 1, first)]
    return sums + np.where(restarted, 0, packed.spread(carried))
