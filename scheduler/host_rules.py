"""Lets a request's judge decide what commits, of what a step has found out.

The device writes all that may commit to its canvas and so tells it; a row of the next step brings along what the
canvas really holds (`Row.held`), before anything is computed from it.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .contract import (
    MOST_RANKS,
    Doubles,
    Ints,
    Measure,
    Span,
    StepResult,
)
from .decoding.boundaries import Longs
from .decoding.commit.base import (
    REPORT_ALL,
    Bools,
    HostCommitRule,
    LaneSlice,
    Replica,
    ReplicaView,
    StepView,
)
from .decoding.commit.shared.speculation import Ensemble, Speculator
from .decoding.lane_tree import LaneTree
from .decoding.vocabulary import END, Vocabulary

if TYPE_CHECKING:
    from .sequence import Sequence

BEHIND = 64.0  # how far behind all others the device puts what stands in for an end token (`contract.Measure`)


class Ruling(NamedTuple):
    """What stands at the n positions of `spans`: `tokens` [n], each as it is at `found` [n] in the step's result."""

    spans: Many[Span]
    tokens: Ints
    found: Longs


class HostRuleRunner:
    """One request's judge."""

    def __init__(self, judge: HostCommitRule, vocabulary: Vocabulary) -> None:
        self._judge = judge
        self._speculator: Speculator | None = judge if isinstance(judge, Speculator) else None
        self.ensemble: Ensemble | None = judge if isinstance(judge, Ensemble) else None
        self._vocabulary = vocabulary
        self._ends: Bools = (vocabulary.classes & END) != 0
        self.chosen: Bools = np.zeros(0, np.bool_)  # of the last step's positions, those that commit
        self.cut: int | None = None  # the answer is to end with this canvas position, or before it
        self.stays = False  # lanes that are full do not end yet

    @property
    def ranks(self) -> int | None:
        """All that there are, so that who else is in the step changes nothing of which of equals are told."""
        return MOST_RANKS if self._judge.ranks else None

    @property
    def revises(self) -> bool:
        return self._judge.revises

    @property
    def sees_ahead(self) -> bool:
        return self._judge.sees_ahead

    def shadows(self, sequence: Sequence) -> tuple[Replica, ...]:
        """What the next step computes behind the canvas."""
        tree = sequence.tree
        return self._judge.replicas(tree.live[0], tree.mask_id)

    @property
    def drafts(self) -> Many[Ints]:
        """Canvases that the next step computes beside the request's own, as its judge wants them."""
        return () if self._speculator is None else self._speculator.drafts

    @property
    def over(self) -> bool:
        """The answer is found, whatever lanes are left."""
        return self.ensemble is not None and self.ensemble.over

    def first_end(self, draft: Ints) -> int:
        """The first end token of a draft, a canvas position; behind it if there is none."""
        ends = self._ends[draft]
        return int(ends.argmax()) if ends.any() else len(draft)

    def decide(self, sequence: Sequence, spans: Many[Span], result: StepResult, part: slice) -> Ruling:
        """What stands at the positions of `spans`, which are `part` of a step's result: those of the request's own
        row, and then the same ones in the row of each draft; or those of an ensemble's branches."""
        if self.ensemble is not None:
            return self._observe(self.ensemble, sequence, spans, result, part)
        if self._speculator is None or sequence.guide is not None:
            return self._rule(sequence, spans, result, part)
        canvases = (sequence.canvas, *self.drafts)
        own, size = spans[: len(spans) // len(canvases)], (part.stop - part.start) // len(canvases)
        starts = [part.start + size * number for number in range(len(canvases))]
        branches = [
            self._evidence(sequence, own, result, slice(start, start + size), canvas)
            for canvas, start in zip(canvases, starts, strict=True)
        ]
        choice = self._speculator.choose_among(branches)
        return Ruling(own, choice.tokens, np.array(starts)[choice.branches] + np.arange(size))

    def _rule(self, sequence: Sequence, spans: Many[Span], result: StepResult, part: slice) -> Ruling:
        """`spans` begin `part`; the rest of it is of a shadow."""
        own = slice(part.start, part.start + sum(span.end - span.start for span in spans))
        evidence = self._evidence(sequence, spans, result, own)
        if own.stop < part.stop:
            evidence = replace(evidence, replica=self._shadowed(result, slice(own.stop, part.stop)))
        return Ruling(spans, self._decide(evidence, sequence), np.arange(own.start, own.stop))

    def _observe(
        self, judge: Ensemble, sequence: Sequence, spans: Many[Span], result: StepResult, part: slice
    ) -> Ruling:
        found, at = [], part.start
        for span, turn in zip(spans, judge.turns, strict=True):
            here = slice(at, at := at + span.end - span.start)
            found.append(self._evidence(sequence, [span], result, here, turn.canvas))
        canvas = judge.observe(found)
        first = sequence.prompt_length
        everything = Span(first, first + len(canvas), REPORT_ALL)
        return Ruling([everything], canvas.copy(), np.zeros(len(canvas), np.int64))

    def _decide(self, evidence: StepView, sequence: Sequence) -> Ints:
        decoder, mask_id = sequence.request.decoder, evidence.mask_id
        if decoder.policy.reads_view:
            decoder.policy.read_view(sequence.tree, evidence, self._vocabulary)
            evidence = replace(evidence, lane_slices=_parts(sequence.tree, evidence.positions))
        verdict, held = self._judge.choose(evidence), evidence.canvas_tokens
        tokens, behind = verdict.tokens, slice(evidence.lanes.stop, len(held))
        if decoder.later_threshold:
            waits = evidence.open & (evidence.confidence < decoder.later_threshold)
            waits[behind] = False
            for part in evidence.lane_slices:
                if part.first:
                    waits[part.here] = False
            tokens = np.where(waits, mask_id, tokens)
        if behind.start < behind.stop:
            ahead, proposed = (tokens if self.sees_ahead else held)[behind], evidence.tokens[behind]
            drafts = (ahead == mask_id) & (evidence.confidence[behind] >= decoder.draft_threshold)
            ahead = np.where(drafts & ~self._ends[proposed], proposed, ahead)
            tokens = np.concatenate((tokens[: behind.start], ahead))
        self.stays = verdict.stays
        self.chosen = tokens != mask_id
        if sequence.guide is not None:  # which alone says where the answer may end
            return evidence.canvas_tokens
        if verdict.end is not None:
            self.cut = verdict.end if self.cut is None else min(self.cut, verdict.end)
        return tokens

    def _evidence(
        self, sequence: Sequence, spans: Many[Span], result: StepResult, part: slice, draft: Ints | None = None
    ) -> StepView:
        prompt, mask_id = sequence.prompt_length, sequence.tree.mask_id
        positions = _positions(spans) - prompt
        canvas = sequence.canvas if draft is None else draft
        held, proposals = canvas[positions], result.proposals[part]
        tokens = proposals if sequence.guide is not None else np.where(held == mask_id, result.tokens[part], proposals)
        confidence, entropy = self._sureness(result, part, tokens != proposals)
        ranked, logprobs = self._likeliest(result, part)
        return StepView(
            canvas=canvas,
            mask_id=mask_id,
            positions=positions,
            tokens=tokens,
            confidence=confidence,
            entropy=entropy,
            ranked=ranked,
            logprobs=logprobs,
            lane_slices=_parts(sequence.tree, positions),
            ends=self._ends,
            step=sequence.steps,
            prompt=prompt,
        )

    def _sureness(self, result: StepResult, part: slice, stands_in: Bools) -> tuple[Doubles, Doubles]:
        """Confidence and entropy [n]."""
        confidence = result.confidence[part]
        measured = -confidence if result.measured is None else result.measured[part].astype(np.float64)
        if self._judge.measure is Measure.SINGLE:
            return confidence if result.measured is None else measured, np.full(len(confidence), np.nan)
        return np.where(stands_in, measured + BEHIND, confidence), np.where(stands_in, np.inf, -measured)

    def _shadowed(self, result: StepResult, part: slice) -> ReplicaView:
        return ReplicaView(result.proposals[part], result.confidence[part], *self._likeliest(result, part))

    def _likeliest(self, result: StepResult, part: slice) -> tuple[Ints, Doubles]:
        """Tokens and their log-probabilities [n, ranks], as many as the judge asks for."""
        if result.scores is None:
            nothing = np.zeros((part.stop - part.start, 0))
            return nothing.astype(np.int32), nothing
        told = part, slice(self._judge.ranks)
        return result.scores.ranked[told], result.scores.logprobs[told].astype(np.float64)


def _positions(spans: Many[Span]) -> Ints:
    """[n] all of them, ascending."""
    first, last = spans[0].start, spans[-1].end
    if last - first == sum(span.end - span.start for span in spans):
        return np.arange(first, last, dtype=np.int32)
    return np.concatenate([np.arange(span.start, span.end, dtype=np.int32) for span in spans])


def _parts(tree: LaneTree, positions: Ints) -> tuple[LaneSlice, ...]:
    """Of the lanes that a step shows something of; `positions` [n], ascending. They follow each other from the first
    position on."""
    live = tree.live
    bounds = positions.searchsorted([bound for lane in live for bound in (lane.start, lane.end)]).tolist()
    parts = zip(live, bounds[::2], bounds[1::2], strict=True)
    return tuple(LaneSlice(lane, slice(start, end), tree.forced(lane)) for lane, start, end in parts if start < end)
