"""Rows of two networks: one drafts, the other, which is served, checks the draft in the next step."""

from __future__ import annotations

from ..contract import Row, Span
from ..decoding.cache import ComputeRange
from ..decoding.commit.base import EVERYTHING
from ..decoding.commit.host.deer import Deer
from .packed import Holding, PackedLayout, RowSource, StepInputs, lane_spans, make_row


class DrafterLayout:
    """A step that drafts has a row of the drafter: from where its keys are those of final tokens to the end of the
    draft, or of the drafter's block with it. The first one has a row of the served network, too, of the prompt but for
    its last token. A step that checks has a row of the served network, of the last token and the draft. A chunk of the
    prompt has a row of each.

    Keys of a drafter that is block-causal are exact. One that sees the whole canvas computes each token once with what
    follows it then: its drafts may be worse for it, and the text stays the same."""

    known = EVERYTHING

    def __init__(self, holding: Holding, source: RowSource, page_size: int) -> None:
        """Raises `TypeError` if the decoder's rule checks no drafts, or the network has no drafter."""
        rule, drafter = None if source.host_rule is None else source.host_rule.rule, source.tree.pattern.drafter
        if not isinstance(rule, Deer) or drafter is None:
            raise TypeError(f"decoder {source.request.decoder.name!r} has nothing that drafts")
        self._slot, self._source, self._rule, self._drafter = holding.slots[0], source, rule, drafter
        self._drafted: int | None = None  # the drafter's keys before this position are those of final tokens
        self.placements = PackedLayout(holding, source, page_size).placements

    def rows(self, window: ComputeRange, inputs: StepInputs) -> tuple[Row, ...]:
        source, tree, draft = self._source, self._source.tree, self._rule.draft
        if not window.drives:
            return (self._keys(inputs, window.start, window.end), self._of_drafter(inputs, window, window.end))
        (lane,) = tree.live
        first, last = tree.origin + lane.start, tree.origin + lane.end - 1
        (span,) = lane_spans(source, [lane], window.start)
        if draft is None and first < last:
            row = self._of_drafter(inputs, window, last, span._replace(start=first, end=last))
            before = first - source.shift
            return (self._keys(inputs, window.start, before), row) if window.start < before else (row,)
        canvas = tree.canvas
        if draft is not None:
            canvas = canvas.copy()
            canvas[lane.start : lane.end - 1] = draft
        check = make_row(source, inputs, self._slot, (window.start, last, last), [span], canvas)
        if draft is None:  # nothing is left to draft, but later requests may read the drafter's keys
            return (check, self._of_drafter(inputs, window, first))
        return (check,)

    def follow(self) -> None:
        if self._rule.draft is not None:
            self._drafted = self._source.tree.origin + self._source.tree.live[0].start

    def _keys(self, inputs: StepInputs, start: int, end: int) -> Row:
        """A row of the served network for its keys alone."""
        return make_row(self._source, inputs, self._slot, (start, end, end), [])._replace(ranks=None)

    def _of_drafter(self, inputs: StepInputs, window: ComputeRange, end: int, span: Span | None = None) -> Row:
        """A row of the drafter, up to `end` at least."""
        drafter, length = self._drafter, self._source.request.length
        start = window.start if self._drafted is None else self._drafted
        if span is not None:
            start, end = min(start, span.start - drafter.logit_shift), min(drafter.ceil(end), length)
        start = min(drafter.floor(start), end - 1)
        spans = [] if span is None else [span]
        row = make_row(self._source, inputs, self._slot, (start, end, end), spans)
        return row._replace(ranks=None, drafter=True)
