"""All lanes of a request in one row, or in one row for each stretch of positions that its cache computes.

Live siblings in one row see each other's newest tokens at no extra cost. The functions below are shared by all layouts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from ..contract import Bias, DeviceCommitRule, Ints, Placement, Row, RowCopy, Span, make
from ..decoding.cache import ComputeRange
from ..decoding.commit.base import EVERYTHING
from ..decoding.lane_tree import GENERATE, Lane, LaneTree
from ..grammar_guide import GrammarGuide
from ..host_rules import HostRuleRunner
from ..logit_bias import Biasing
from ..request import Request

UNSCORED = -1  # in the place of a token whose probability is not needed
NOTHING = DeviceCommitRule(sure=0, threshold=math.inf)


class Holding(NamedTuple):
    """Slots of canvases and pages of keys and values that a request has on the device."""

    slots: tuple[int, ...]
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowSource:
    """The parts of a request that its rows are made from. A layout changes none of them."""

    request: Request
    tree: LaneTree
    drafts: DeviceCommitRule  # commits in the look-ahead, without a host rule
    biasing: Biasing | None
    host_rule: HostRuleRunner | None
    guide: GrammarGuide | None
    ranks: int | None = field(init=False)  # the number of likeliest tokens that a step reports for each position
    host_decides: bool = field(init=False)  # what the canvas holds, so that the device needs its tokens
    shift: int = field(init=False)  # 1: a position is predicted at the one before it
    from_before: int = field(init=False)  # so many positions of a row with blocks are predicted before it
    after: int = field(init=False)  # so many after it are predicted in it: the first one of the next block
    known_first: bool = field(init=False)  # the network reads the known tokens of a row before its masks
    looks_ahead: bool = field(init=False)  # drafts are written after all lanes, or an end is looked for

    def __post_init__(self) -> None:
        rule, decoder = self.host_rule, self.request.decoder
        ranks = None if rule is None else rule.ranks
        if ranks is None and rule is not None and rule.rescores and self.request.ranks is None:
            ranks = 0
        ahead = min(decoder.draft_threshold, decoder.end_threshold, decoder.stop_threshold) < math.inf
        object.__setattr__(self, "ranks", self.request.ranks if ranks is None else ranks)
        object.__setattr__(self, "host_decides", rule is not None or self.guide is not None)
        pattern = self.tree.pattern
        from_before = pattern.logit_shift if pattern.block_size else 0
        object.__setattr__(self, "shift", pattern.logit_shift)
        object.__setattr__(self, "from_before", from_before)
        # What the host decides must come with its row.
        object.__setattr__(self, "after", 0 if self.host_decides else from_before)
        object.__setattr__(self, "known_first", pattern.known_first)
        object.__setattr__(self, "looks_ahead", ahead or (rule is not None and rule.sees_ahead))


class StepInputs(NamedTuple):
    """A request before a step: its own count of steps, and canvas positions of its first open position, of its first
    end token, and of the end of the look-ahead."""

    step: int
    frontier: int
    end_at: int
    lookahead_end: int


class RowLayout(Protocol):
    """The rows of one request. `placements` are due with its next step; whoever plans that step clears them."""

    placements: list[Placement]
    known: int  # the last rows computed no absolute position from here on with the tokens committed before them

    def rows(self, window: ComputeRange, inputs: StepInputs) -> tuple[Row, ...]:
        """The rows of the next step. They may be made several times before a step takes them."""

    def follow(self) -> None:
        """The lanes have advanced."""


class PackedLayout:
    known = EVERYTHING

    def __init__(self, holding: Holding, source: RowSource, page_size: int) -> None:
        self._slot, self._source = holding.slots[0], source
        request, tree = source.request, source.tree
        # If nothing is given after it, the device only needs what a grammar has forced. The rest is masks.
        canvas = tree.canvas if request.infill else tree.canvas[: tree.live[0].start]
        tokens = np.concatenate((request.prompt, canvas, request.suffix))
        self.placements = [Placement(self._slot, tokens, holding.pages)]

    def rows(self, window: ComputeRange, inputs: StepInputs) -> tuple[Row, ...]:
        source = self._source
        parts: list[Span] = []
        after = source.after
        if window.drives:
            parts = lane_spans(source, source.tree.live, window.start)
            parts += lookahead_span(source, min(window.end, source.tree.origin + inputs.lookahead_end))
        whole = not parts or (parts[0].start < parts[0].end and parts[-1].end <= window.end + after)
        if whole and not window.gaps and source.host_rule is None:  # nearly always
            row = make_row(source, inputs, self._slot, window[:3], parts)
            return (row if window.selection is None else row._replace(selection=window.selection),)
        rows = []
        begun = -1  # the last part that has a span
        for start, end in window.stretches:
            spans: list[Span] = []
            for number, part in enumerate(parts):
                if part.start < end + after and start < part.end:
                    spans.append(_within(part, start, end + after, joined=number == begun))
                    begun = number
            rows.append(make_row(source, inputs, self._slot, (start, end, window.visible), spans))
        if parts and source.host_rule is not None:
            rows += _replica_rows(source, source.host_rule, rows[0])
        return tuple(rows)

    def follow(self) -> None:
        pass


def make_row(
    source: RowSource,
    inputs: StepInputs,
    slot: int,
    positions: tuple[int, int, int],
    spans: list[Span],
    draft: Ints | None = None,
) -> Row:
    """A row of the absolute `positions`: start, end, and visible. Of the canvas, or of a `draft` of it."""
    start, end, visible = positions
    if spans and spans[0].start - source.shift < start:  # the position that predicts the first one comes along
        start = spans[0].start - source.shift
    biases = _biases(source, inputs, draft) if spans and source.biasing is not None else ()
    sampling = source.request.sampling
    if not source.host_decides:
        order = reading_order(source, start, host_tokens(source, start, end, draft)) if source.known_first else None
        optional = biases, source.ranks, None, None, None, None, False, order, None, None, False
        fields = slot, start, end, visible, tuple(spans), sampling, inputs.step, *optional
        return make(Row, fields)
    tokens = host_tokens(source, start, end, draft)
    row = Row(slot, start, end, visible, tuple(spans), sampling, inputs.step, biases, source.ranks, host_tokens=tokens)
    if source.known_first:
        row = row._replace(order=reading_order(source, start, tokens))
    if spans and source.host_rule is not None and source.host_rule.rescores:
        own = np.concatenate([tokens[span.start - start : span.end - start] for span in spans])
        row = row._replace(scored=np.where(own == source.tree.mask_id, UNSCORED, own).astype(np.int32))
    if source.guide is None or not spans:
        return row
    return source.guide.restrict(row, source.tree.origin, inputs.frontier)


def lane_spans(source: RowSource, lanes: Iterable[Lane], row_start: int) -> list[Span]:
    """The spans of lanes, in a row that begins at `row_start`. With blocks, all that is predicted before it is
    committed."""
    tree, rule_of = source.tree, source.request.decoder.rule.for_lane
    spans: list[Span] = []
    origin, first = tree.origin, tree.live[0]
    row_start += source.from_before
    for lane in lanes:
        start = origin + lane.start
        if start < row_start:
            start = row_start
        rule = rule_of(lane, lane.active or lane is first)
        spans.append(make(Span, (start, origin + lane.end, rule, lane.role is GENERATE, False)))
    return spans


def lookahead_span(source: RowSource, end: int) -> list[Span]:
    """The positions after all lanes, up to `end`, if drafts are written there or an end is looked for."""
    host_rule, last = source.host_rule, source.tree.live[-1]
    start = source.tree.origin + last.end
    if start >= end or not source.looks_ahead:
        return []
    if host_rule is None:
        return [make(Span, (start, end, source.drafts, False, False))]
    return [Span(start, end, source.request.decoder.rule.for_lane(last, first=False), host_rule.sees_ahead)]


def _biases(source: RowSource, inputs: StepInputs, draft: Ints | None = None) -> tuple[Bias, ...]:
    """The biases of a step on the canvas, or on a `draft` of it."""
    if source.biasing is None:
        return ()
    if draft is None or source.host_rule is None:
        return source.biasing.at(source.tree.canvas, inputs.end_at)
    return source.biasing.at(draft, min(inputs.end_at, source.host_rule.first_end(draft)))


def host_tokens(source: RowSource, start: int, end: int, draft: Ints | None = None) -> Ints:
    """The tokens at absolute positions `[start, end)`, with a `draft` in the place of the canvas. Masks follow the last
    token, where a block of the network goes on."""
    prompt, suffix = source.request.prompt, source.request.suffix
    canvas = source.tree.canvas if draft is None else draft
    first, last = len(prompt), len(prompt) + len(canvas)
    if first <= start and end <= last:  # nearly always
        return canvas[start - first : end - first].copy()
    parts = (prompt[start:end], canvas[max(start - first, 0) : max(end - first, 0)])
    found = np.concatenate((*parts, suffix[max(start - last, 0) : max(end - last, 0)]))
    return np.pad(found, (0, end - start - len(found)), constant_values=source.tree.mask_id)


def reading_order(source: RowSource, start: int, tokens: Ints) -> Ints | None:
    """The absolute positions of a row of `tokens` from `start` on, in the order in which the network reads them. None:
    as they ascend. A mask that was given is a token like others."""
    if not source.known_first:
        return None
    tree = source.tree
    masks = tokens == tree.mask_id
    masks[: max(tree.origin - start, 0)] = False
    masks[max(tree.origin + len(tree.canvas) - start, 0) :] = False
    if not (masks[:-1] > masks[1:]).any():  # no token follows a mask
        return None
    return start + np.argsort(masks, kind="stable").astype(np.int32)


def _within(span: Span, start: int, end: int, joined: bool) -> Span:
    """The part of `span` in `[start, end)`."""
    if start <= span.start and span.end <= end and not joined:
        return span
    return span._replace(start=max(start, span.start), end=min(end, span.end), joined=joined)


def _replica_rows(source: RowSource, host_rule: HostRuleRunner, row: Row) -> list[Row]:
    """The rows after the canvas that a host commit rule needs: replicas of the leftmost lane."""
    lane, first = source.tree.live[0], source.request.length
    size, origin = lane.end - lane.start, source.tree.origin + lane.start
    rows: list[Row] = []
    for replica in host_rule.replicas(source.tree):
        start = first + len(rows) * size
        end = start + size
        hidden = first + (replica.hidden_in - 1) * size if replica.hidden_in else origin
        spans = (Span(start, end, NOTHING),) if replica.projected else ()
        copy = RowCopy(start - origin, start - hidden)
        own = Row(row.slot, start, end, end, spans, row.sampling, row.step, host_tokens=replica.tokens, copy=copy)
        rows.append(own._replace(ranks=row.ranks) if replica.projected else own)
    return rows
