"""Lays a request's lanes out as rows of a step: all lanes in each stretch of positions that its cache computes, or,
isolated, a row for each.

Live siblings share one row and see each other's newest tokens at no extra cost. The paper (arXiv 2606.08411, section
3.4) runs them on the keys and values that stood at the fork. `IsolatedLayout` does so with what the device offers
anyway: a refine lane moves to a slot of its own, whose page table shares the pages before the lane and has private ones
from there on, so neither lane sees what the other writes until the refine lane ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from ..contract import (
    DeviceCommitRule,
    Placement,
    Row,
    RowCopy,
    Span,
)
from ..decoding.cache import ComputeRange
from ..decoding.commit.base import EVERYTHING
from ..decoding.lane_tree import Lane, Role
from .row_inputs import biases, held_by, ranks

if TYPE_CHECKING:
    from ..host_rules import HostRuleRunner
    from ..sequence import Sequence


class Holding(NamedTuple):
    """What a request holds, or needs, on the device: slots of canvases and pages."""

    slots: tuple[int, ...]
    pages: tuple[int, ...]


class RowLayout(Protocol):
    """How the lanes of one request travel. `placements` are due with its next step."""

    placements: list[Placement]
    known: int  # the last rows computed no position from here on with what was committed before them, absolute

    def rows(self, sequence: Sequence, window: ComputeRange) -> tuple[Row, ...]: ...

    def follow(self, sequence: Sequence) -> None:
        """The lanes have advanced."""
        ...


NOTHING = DeviceCommitRule(sure=0, threshold=math.inf)


class PackedLayout:
    """All lanes in one row, or in one for each stretch of the window, which parts lanes."""

    known = EVERYTHING

    def __init__(self, held: Holding, sequence: Sequence, page_size: int) -> None:
        self._slot, self._pages = held.slots[0], held.pages
        self.placements = [self._placement(sequence)]

    def rows(self, sequence: Sequence, window: ComputeRange) -> tuple[Row, ...]:
        parts: list[Span] = []
        if window.drives:
            parts = [_span(sequence, lane, window.start) for lane in sequence.tree.live]
            parts += _lookahead(sequence, min(window.end, sequence.prompt_length + sequence.drafts_end()))
        rows = []
        begun = -1  # the last part that has a span
        for start, end in window.stretches:
            spans: list[Span] = []
            for number, part in enumerate(parts):
                if part.start < end and start < part.end:
                    spans.append(_within(part, start, end, joined=number == begun))
                    begun = number
            rows.append(_row(sequence, self._slot, start, end, window.visible, spans))
        if parts and sequence.judging is not None:
            rows += _shadows(sequence, sequence.judging, rows[0])
        return tuple(rows)

    def follow(self, sequence: Sequence) -> None:
        pass

    def _placement(self, sequence: Sequence) -> Placement:
        request, canvas = sequence.request, sequence.canvas
        behind = [canvas, request.suffix] if len(request.suffix) else [canvas[: sequence.frontier]]
        return Placement(self._slot, np.concatenate((request.prompt, *behind)), self._pages)


@dataclass(frozen=True, slots=True)
class Branch:
    """A refine lane in its own slot: its rows start at a border of pages and end at `end`, absolute positions."""

    lane: Lane
    slot: int
    pages: tuple[int, ...]  # private ones
    start: int
    end: int


class IsolatedLayout:
    """Refine lanes in rows of their own; the generate lane starts behind them."""

    def __init__(self, held: Holding, sequence: Sequence, page_size: int) -> None:
        prompt, total = sequence.request.prompt, sequence.prompt_length + len(sequence.canvas)
        self._slot, *self._slots = held.slots
        own = -(-total // page_size)
        self._pages, self._spare = held.pages[:own], list(held.pages[own:])
        self._page_size = page_size
        self._branches: list[Branch] = []
        self.known = EVERYTHING
        self.placements = [Placement(self._slot, prompt, self._pages)]

    def rows(self, sequence: Sequence, window: ComputeRange) -> tuple[Row, ...]:
        rows = []
        self.known = EVERYTHING
        if self._branches:  # the request's own slot knows nothing of what they commit until they end
            first = sequence.prompt_length + self._branches[0].lane.start
            self.known = first if window.refresh else min(first, window.start)
        if window.drives:
            for branch in self._branches:
                spans = [_span(sequence, branch.lane, branch.start)]
                rows.append(_row(sequence, branch.slot, branch.start, branch.end, branch.end, spans))
        lane = sequence.tree.live[-1]
        if lane.role is Role.GENERATE and window.drives:
            start = sequence.prompt_length + lane.start
            if self._branches and not window.refresh:
                window = window._replace(start=start)
            spans = [_span(sequence, lane, window.start), *_lookahead(sequence, window.end)]
            rows.append(_row(sequence, self._slot, *window[:3], spans))
        elif window.refresh or not window.drives:
            rows.append(_row(sequence, self._slot, *window[:3], []))
        return tuple(rows)

    def follow(self, sequence: Sequence) -> None:
        live = sequence.tree.live
        ended = [branch for branch in self._branches if branch.lane not in live]
        for branch in ended:
            self._branches.remove(branch)
            self._slots.append(branch.slot)
            self._spare += branch.pages
        if ended:  # the generate lane learns what they committed
            tokens = np.concatenate((sequence.request.prompt, sequence.canvas))
            self.placements.append(Placement(self._slot, tokens, self._pages))
        known = {branch.lane.id for branch in self._branches}
        for lane in live:
            if lane.role is Role.REFINE and lane.id not in known:
                self._branch(sequence, lane)

    def _branch(self, sequence: Sequence, lane: Lane) -> None:
        prompt, size = sequence.prompt_length, self._page_size
        shared = (prompt + lane.start - sequence.pattern.logit_shift) // size
        end = prompt + min(lane.end + (sequence.request.decoder.lookahead or 0), len(sequence.canvas))
        count = -(-end // size) - shared
        pages, self._spare = tuple(self._spare[:count]), self._spare[count:]
        branch = Branch(lane, self._slots.pop(), pages, shared * size, end)
        self._branches.append(branch)
        tokens = np.concatenate((sequence.request.prompt, sequence.canvas[: end - prompt]))
        self.placements.append(Placement(branch.slot, tokens, (*self._pages[:shared], *pages)))


def _span(sequence: Sequence, lane: Lane, row_start: int) -> Span:
    prompt, forced = sequence.prompt_length, sequence.tree.forced(lane)
    start = max(prompt + lane.start, row_start)
    transfer = sequence.request.decoder.rule.for_lane(lane, forced)
    return Span(start, prompt + lane.end, transfer, may_end=lane.role is Role.GENERATE)


def _within(span: Span, start: int, end: int, joined: bool) -> Span:
    """What of it is in `[start, end)`."""
    if start <= span.start and span.end <= end and not joined:
        return span
    return replace(span, start=max(start, span.start), end=min(end, span.end), joined=joined)


def _shadows(sequence: Sequence, judging: HostRuleRunner, row: Row) -> list[Row]:
    """The rows behind the canvas for which a judge asks."""
    lane, first = sequence.tree.live[0], sequence.request.length
    size, origin = lane.end - lane.start, sequence.prompt_length + lane.start
    rows: list[Row] = []
    for shadow in judging.shadows(sequence):
        start = first + len(rows) * size
        end = start + size
        hidden = first + (shadow.hidden_in - 1) * size if shadow.hidden_in else origin
        spans = (Span(start, end, NOTHING),) if shadow.projected else ()
        copy = RowCopy(start - origin, start - hidden)
        own = Row(row.slot, start, end, end, spans, row.sampling, row.step, host_tokens=shadow.tokens, copy=copy)
        rows.append(replace(own, ranks=row.ranks) if shadow.projected else own)
    return rows


def _lookahead(sequence: Sequence, end: int) -> list[Span]:
    """What lies behind all lanes, if drafts are written there or the end is looked for."""
    decoder = sequence.request.decoder
    start = sequence.prompt_length + sequence.tree.live[-1].end
    judging = sequence.judging
    asked = not decoder.draft_threshold == decoder.end_threshold == math.inf
    if start >= end or not (asked or (judging is not None and judging.sees_ahead)):
        return []
    drafts = DeviceCommitRule(sure=0, threshold=decoder.draft_threshold)
    if judging is not None:
        drafts = decoder.rule.for_lane(sequence.tree.live[-1], first=False)
    return [Span(start, end, drafts, may_end=judging is not None and judging.sees_ahead)]


def _row(sequence: Sequence, slot: int, start: int, end: int, visible: int, spans: list[Span]) -> Row:
    if spans:  # what predicts the first position comes along
        start = min(start, spans[0].start - sequence.pattern.logit_shift)
    row = Row(
        slot,
        start,
        end,
        visible,
        tuple(spans),
        sequence.request.sampling,
        sequence.steps,
        biases=biases(sequence) if spans else (),
        ranks=ranks(sequence),
        host_tokens=held_by(sequence, start, end) if sequence.told else None,
    )
    return row if sequence.guide is None or not spans else sequence.guide.restrict(row, sequence)
