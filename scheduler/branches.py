"""Lays a request's canvas and the drafts of it out as rows of one step, each in a slot of its own.

Rows write keys and values in place, so a draft's page table has private pages where its row writes, and the request's
own ones before and behind. Of a page that a row fills only in part, the rest is copied first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .caches import Window
from .contract import Ints, Placement, Row
from .rows import EVERYTHING, Holding, Together

if TYPE_CHECKING:
    from .sequence import Sequence


class Speculating:
    """The row of all lanes, and beside it one like it for each draft of the request's judge."""

    known = EVERYTHING

    def __init__(self, held: Holding, sequence: Sequence, page_size: int) -> None:
        slot, *self._slots = held.slots
        count = -(-sequence.request.length // page_size)
        self._pages, spare, self._page_size = held.pages[:count], held.pages[count:], page_size
        each = len(spare) // max(1, len(self._slots))
        self._private = [spare[at : at + each] for at in range(0, each * len(self._slots), each or 1)]
        self._canvas = Together(Holding((slot,), self._pages), sequence, page_size)
        self._own = self._canvas.placements
        self._drafted: list[Placement] = []
        self.placements = list(self._own)

    def rows(self, sequence: Sequence, window: Window) -> tuple[Row, ...]:
        """Plans may be made and then not carry them: all that is due is said anew each time."""
        (own,) = self._canvas.rows(sequence, window)
        due = [placement for placement in self.placements if placement.slot == own.slot]
        judging, rows = sequence.judging, [own]
        drafts = () if judging is None or not window.drives else judging.drafts
        for number, draft in enumerate(drafts):
            slot = self._slots[number]
            due.append(self._place(sequence, slot, self._private[number], own, draft))
            held = sequence.holds(own.start, own.end, draft)
            rows.append(replace(own, slot=slot, held=held, biases=sequence.biases(draft)))
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
        tokens = sequence.holds(0, sequence.request.length, draft)
        copied = tuple((pages[at], table[at]) for at in sorted(shared))
        return Placement(slot, tokens, table, copied)
