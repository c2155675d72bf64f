"""Lays several canvases of one request out as rows of a step, each in a slot of its own: drafts of the one it has, or
the branches of an ensemble.

Rows write keys and values in place, so a draft's page table has private pages where its row writes, and the request's
own ones before and behind. Of a page that a row fills only in part, the rest is copied first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..contract import Ints, Placement, Row, Span
from ..decoding.cache import ComputeRange
from ..decoding.commit.base import EVERYTHING, REPORT_ALL
from ..decoding.commit.shared.speculation import Ensemble, Turn
from .packed import Holding, PackedLayout
from .row_inputs import biases, held_by, ranks

if TYPE_CHECKING:
    from ..sequence import Sequence


class DraftLayout:
    """The row of all lanes, and beside it one like it for each draft of the request's judge."""

    known = EVERYTHING

    def __init__(self, held: Holding, sequence: Sequence, page_size: int) -> None:
        slot, *self._slots = held.slots
        count = -(-sequence.request.length // page_size)
        self._pages, spare, self._page_size = held.pages[:count], held.pages[count:], page_size
        each = len(spare) // max(1, len(self._slots))
        self._private = [spare[at : at + each] for at in range(0, each * len(self._slots), each or 1)]
        self._canvas = PackedLayout(Holding((slot,), self._pages), sequence, page_size)
        self.placements = list(self._canvas.placements)

    def rows(self, sequence: Sequence, window: ComputeRange) -> tuple[Row, ...]:
        """Plans may be made and then not carry them: all that is due is said anew each time."""
        (own,) = self._canvas.rows(sequence, window)
        due = [placement for placement in self.placements if placement.slot == own.slot]
        judging, rows = sequence.judging, [own]
        drafts = () if judging is None or not window.drives else judging.drafts
        for number, draft in enumerate(drafts):
            slot = self._slots[number]
            due.append(self._place(sequence, slot, self._private[number], own, draft))
            held = held_by(sequence, own.start, own.end, draft)
            rows.append(replace(own, slot=slot, host_tokens=held, biases=biases(sequence, draft)))
        self.placements[:] = due
        return tuple(rows)

    def follow(self, sequence: Sequence) -> None:
        pass

    def _place(self, sequence: Sequence, slot: int, private: tuple[int, ...], own: Row, draft: Ints) -> Placement:
        size, pages = self._page_size, self._pages
        first, behind = own.start // size, -(-own.end // size)
        table = (*pages[:first], *private[: behind - first], *pages[behind:])
        shared = {first} if own.start % size else set()
        if own.end % size and own.visible > own.end:
            shared.add(behind - 1)
        tokens = held_by(sequence, 0, sequence.request.length, draft)
        copied = tuple((pages[at], table[at]) for at in sorted(shared))
        return Placement(slot, tokens, table, copied)


class EnsembleLayout:
    """The branches of an ensemble, each with pages of its own."""

    known = EVERYTHING

    def __init__(self, held: Holding, sequence: Sequence, page_size: int) -> None:
        count = -(-sequence.request.length // page_size)
        self._slots = held.slots
        self._pages = [held.pages[at : at + count] for at in range(0, count * len(held.slots), count)]
        self._ensemble = ensemble_of(sequence)
        self._ensemble.open(sequence.canvas, sequence.tree.mask_id)
        self.placements = [self._placed(sequence, number) for number in range(len(held.slots))]

    def rows(self, sequence: Sequence, window: ComputeRange) -> tuple[Row, ...]:
        return tuple(self._row(sequence, turn) for turn in self._ensemble.turns)

    def follow(self, sequence: Sequence) -> None:
        for source, target in self._ensemble.copied:
            copied = tuple(zip(self._pages[source], self._pages[target], strict=True))
            self.placements.append(replace(self._placed(sequence, target), copied=copied))
        self._ensemble.copied.clear()

    def _placed(self, sequence: Sequence, number: int) -> Placement:
        """Its rows bring along what they hold; elsewhere nobody reads its canvas."""
        return Placement(self._slots[number], sequence.request.prompt, self._pages[number])

    def _row(self, sequence: Sequence, turn: Turn) -> Row:
        request, prompt = sequence.request, sequence.prompt_length
        span = Span(prompt + turn.start, prompt + turn.end, REPORT_ALL)
        start, end = (0, request.length) if turn.whole else (span.start - sequence.pattern.logit_shift, span.end)
        return Row(
            self._slots[turn.branch],
            start,
            end,
            request.length,
            (span,),
            request.sampling,
            sequence.steps,
            biases=biases(sequence, turn.canvas),
            ranks=ranks(sequence),
            host_tokens=held_by(sequence, start, end, turn.canvas),
        )


def ensemble_of(sequence: Sequence) -> Ensemble:
    """Raises `TypeError` if its decoder has none."""
    if sequence.judging is None or sequence.judging.ensemble is None:
        raise TypeError(f"decoder {sequence.request.decoder.name!r} has one canvas")
    return sequence.judging.ensemble
