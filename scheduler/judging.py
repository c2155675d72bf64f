"""Lets a request's judge decide what commits, of what a step has found out.

The device writes all that may commit to its canvas and so tells it; a row of the next step brings along what the
canvas really holds (`Row.held`), before anything is computed from it.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .contract import Doubles, Ints, Span, StepResult
from .rules.base import Bools, Evidence, Judge, Part, Shadow, Shadowed
from .vocabulary import END, Vocabulary

if TYPE_CHECKING:
    from .sequence import Sequence

BEHIND = 64.0  # how far behind all others the device puts what stands in for an end token (`contract.Measure`)


class Judging:
    """One request's judge."""

    def __init__(self, judge: Judge, vocabulary: Vocabulary) -> None:
        self._judge = judge
        self._ends: Bools = (vocabulary.classes & END) != 0
        self.chosen: Bools = np.zeros(0, np.bool_)  # of the last step's positions, those that commit
        self.cut: int | None = None  # the answer is to end with this canvas position
        self.stays = False  # lanes that are full do not end yet

    @property
    def ranks(self) -> int | None:
        return self._judge.ranks or None

    @property
    def revises(self) -> bool:
        return self._judge.revises

    @property
    def sees_ahead(self) -> bool:
        return self._judge.sees_ahead

    def shadows(self, sequence: Sequence) -> tuple[Shadow, ...]:
        """What the next step computes behind the canvas."""
        tree = sequence.tree
        return self._judge.shadows(tree.live[0], tree.mask_id)

    def decide(self, sequence: Sequence, spans: Many[Span], result: StepResult, part: slice) -> Ints:
        """What stands at the positions of `spans`, which begin `part` of a step's result; the rest of it is of a
        shadow."""
        own = slice(part.start, part.start + sum(span.end - span.start for span in spans))
        evidence = self._evidence(sequence, spans, result, own)
        if own.stop < part.stop:
            evidence = replace(evidence, shadow=_shadowed(result, slice(own.stop, part.stop)))
        decoder, mask_id = sequence.request.decoder, evidence.mask_id
        verdict = self._judge.choose(evidence)
        tokens = verdict.tokens
        inside = np.zeros(len(tokens), np.bool_)
        for lane in evidence.parts:
            here = lane.here
            inside[here] = True
            if not lane.first and decoder.later_threshold:
                waits = evidence.open[here] & (evidence.confidence[here] < decoder.later_threshold)
                tokens[here][waits] = mask_id
        if not self.sees_ahead:
            drafts = evidence.open & (evidence.confidence >= decoder.draft_threshold)
            tokens = np.where(inside, tokens, np.where(drafts, evidence.tokens, evidence.held))
        self.cut, self.stays = verdict.end, verdict.stays
        self.chosen = tokens != mask_id
        return evidence.held if sequence.guide is not None else tokens

    def _evidence(self, sequence: Sequence, spans: Many[Span], result: StepResult, part: slice) -> Evidence:
        prompt, mask_id = sequence.prompt_length, sequence.tree.mask_id
        positions = np.concatenate([np.arange(span.start, span.end) for span in spans]) - prompt
        held, proposals = sequence.canvas[positions], result.proposals[part]
        tokens = proposals if sequence.guide is not None else np.where(held == mask_id, result.tokens[part], proposals)
        stands_in = tokens != proposals
        measured = -result.confidence[part] if result.measured is None else result.measured[part].astype(np.float64)
        ranked, logprobs = _likeliest(result, part)
        parts: list[Part] = []
        at = 0
        for lane, span in zip(sequence.tree.live, spans, strict=False):  # behind the lanes' comes the look-ahead
            parts.append(Part(lane, slice(at, at := at + span.end - span.start), first=not parts))
        return Evidence(
            canvas=sequence.canvas,
            mask_id=mask_id,
            positions=positions,
            tokens=tokens,
            confidence=np.where(stands_in, measured + BEHIND, result.confidence[part]),
            entropy=np.where(stands_in, np.inf, -measured),
            ranked=ranked,
            logprobs=logprobs,
            parts=tuple(parts),
            ends=self._ends,
            step=sequence.steps,
        )


def _shadowed(result: StepResult, part: slice) -> Shadowed:
    return Shadowed(result.proposals[part], result.confidence[part], *_likeliest(result, part))


def _likeliest(result: StepResult, part: slice) -> tuple[Ints, Doubles]:
    """Tokens and their log-probabilities: [n, ranks], none if nobody has asked."""
    if result.scores is None:
        nothing = np.zeros((part.stop - part.start, 0))
        return nothing.astype(np.int32), nothing
    return result.scores.ranked[part], result.scores.logprobs[part].astype(np.float64)
