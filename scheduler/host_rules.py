"""Runs a request's commit rule on the host: from the result of a step to the tokens that commit.

The device writes every token that may commit to its canvas and reports it. The next step's row brings along what the
canvas really holds (`Row.host_tokens`), before anything is computed from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from .contract import MOST_RANKS, Doubles, Ints, Measure, StepResult
from .decoding.boundaries import Longs
from .decoding.commit.base import Bools, HostCommitRule, LaneSlice, Replica, ReplicaView, StepView
from .decoding.commit.shared.speculation import Ensemble, Speculator
from .decoding.lane_tree import LaneTree
from .decoding.registry import Decoder
from .decoding.vocabulary import END, Vocabulary

LAST = 64.0  # by how much the device ranks the stand-in for an end token after all others (`contract.Measure`)

Viewer = Callable[[Longs, slice, Ints], StepView]  # of canvas positions [n], their part of the result, and the canvas


class Commits(NamedTuple):
    """The canvas after a step: `tokens` [n], the mask id where open, at canvas `positions` [n]. Each token is
    at `found` [n] in the step's result, or `logprobs.FORCED`."""

    positions: Longs
    tokens: Ints
    found: Longs


class HostRuleRunner:
    """The host commit rule of one request."""

    def __init__(self, rule: HostCommitRule, decoder: Decoder, vocabulary: Vocabulary, guided: bool) -> None:
        """A `guided` request has a grammar, which decides where the answer ends and writes its tokens."""
        self._rule = rule
        self._speculator = rule if isinstance(rule, Speculator) else None
        self.ensemble = rule if isinstance(rule, Ensemble) else None
        self._decoder = decoder
        self._vocabulary = vocabulary
        self._guided = guided
        self._ends: Bools = (vocabulary.classes & END) != 0
        self.chosen: Bools = np.zeros(0, np.bool_)  # which of the last step's positions commit
        self.cut: int | None = None  # the answer ends with this canvas position, or before it
        self.stays = False  # full lanes do not end yet
        # All that there are: then the other requests of a step do not change which of equal tokens are reported.
        self.ranks = MOST_RANKS if rule.ranks else None
        self.sees_ahead = rule.sees_ahead

    def replicas(self, tree: LaneTree) -> tuple[Replica, ...]:
        """The replica rows that the next step computes after the canvas."""
        return self._rule.replicas(tree.live[0], tree.mask_id)

    @property
    def drafts(self) -> Sequence[Ints]:
        """Canvases that the next step computes beside the request's own."""
        return () if self._speculator is None else self._speculator.drafts

    @property
    def over(self) -> bool:
        """True once the answer is complete, whatever lanes are left."""
        return self.ensemble is not None and self.ensemble.over

    def first_end(self, canvas: Ints) -> int:
        """The canvas position of the first end token, or else the length of the canvas."""
        ends = self._ends[canvas]
        return int(ends.argmax()) if ends.any() else len(canvas)

    def decide(self, tree: LaneTree, step: int, positions: Longs, result: StepResult, part: slice) -> Commits:
        """The commits of the request's `step`, counted from 0.

        `part` of the result belongs to the request. It begins with the canvas `positions` [n] of its own row, and then
        has the same ones for each draft, or those of a replica row; or it has the positions of an ensemble's branches.
        """
        view = partial(self._view, tree, step, result)
        if self.ensemble is not None:
            return self._observe(self.ensemble, view, positions, part)
        if self._speculator is not None and not self._guided:
            return self._choose_draft(self._speculator, view, tree.canvas, positions, part)
        own, rest = slice(part.start, part.start + len(positions)), slice(part.start + len(positions), part.stop)
        shown = view(positions, own, tree.canvas)
        if rest.start < rest.stop:
            replica = ReplicaView(result.proposals[rest], result.confidence[rest], *self._likeliest(result, rest))
            shown = replace(shown, replica=replica)
        return Commits(positions, self._decide(shown, tree), np.arange(own.start, own.stop))

    def _observe(self, rule: Ensemble, view: Viewer, positions: Longs, part: slice) -> Commits:
        views, at = [], 0
        for turn in rule.turns:
            here = slice(at, at := at + turn.end - turn.start)
            views.append(view(positions[here], slice(part.start + here.start, part.start + here.stop), turn.canvas))
        canvas = rule.observe(views)
        return Commits(np.arange(len(canvas)), canvas.copy(), np.zeros(len(canvas), np.int64))

    def _choose_draft(self, rule: Speculator, view: Viewer, canvas: Ints, positions: Longs, part: slice) -> Commits:
        canvases = (canvas, *rule.drafts)
        size = (part.stop - part.start) // len(canvases)
        own, starts = positions[:size], range(part.start, part.stop, size)
        views = [view(own, slice(at, at + size), each) for at, each in zip(starts, canvases, strict=True)]
        choice = rule.choose_among(views)
        return Commits(own, choice.tokens, np.array(starts)[choice.branches] + np.arange(size))

    def _decide(self, view: StepView, tree: LaneTree) -> Ints:
        decoder, mask_id = self._decoder, view.mask_id
        if decoder.policy.reads_view:
            decoder.policy.read_view(tree, view, self._vocabulary)
            view = replace(view, lane_slices=_slices(tree, view.positions))
        decision, before = self._rule.choose(view), view.canvas_tokens
        tokens, after = decision.tokens, slice(view.lanes.stop, len(before))
        if decoder.later_threshold:
            waits = view.open & (view.confidence < decoder.later_threshold)
            waits[after] = False
            for lane in view.lane_slices:
                if lane.first:
                    waits[lane.here] = False
            tokens = np.where(waits, mask_id, tokens)
        if after.start < after.stop:
            ahead, proposed = (tokens if self.sees_ahead else before)[after], view.tokens[after]
            drafts = (ahead == mask_id) & (view.confidence[after] >= decoder.draft_threshold)
            ahead = np.where(drafts & ~self._ends[proposed], proposed, ahead)
            tokens = np.concatenate((tokens[: after.start], ahead))
        self.stays = decision.stays
        self.chosen = tokens != mask_id
        if self._guided:
            return before
        if decision.end is not None:
            self.cut = decision.end if self.cut is None else min(self.cut, decision.end)
        return tokens

    def _view(
        self, tree: LaneTree, step: int, result: StepResult, positions: Longs, part: slice, canvas: Ints
    ) -> StepView:
        """The view of `part` of a result, which has the `positions` [n] of a `canvas`."""
        places = positions.astype(np.int32)
        proposals = result.proposals[part]
        open_ = canvas[places] == tree.mask_id
        tokens = proposals if self._guided else np.where(open_, result.tokens[part], proposals)
        confidence, entropy = self._certainty(result, part, tokens != proposals)
        ranked, logprobs = self._likeliest(result, part)
        return StepView(
            canvas=canvas,
            mask_id=tree.mask_id,
            positions=places,
            tokens=tokens,
            confidence=confidence,
            entropy=entropy,
            ranked=ranked,
            logprobs=logprobs,
            lane_slices=_slices(tree, places),
            ends=self._ends,
            step=step,
        )

    def _certainty(self, result: StepResult, part: slice, stands_in: Bools) -> tuple[Doubles, Doubles]:
        """Confidence and entropy [n]. `stands_in` [n] are tokens in the place of an end token."""
        confidence = result.confidence[part]
        measured = -confidence if result.measured is None else result.measured[part].astype(np.float64)
        if self._rule.measure is Measure.SINGLE:
            return confidence if result.measured is None else measured, np.full(len(confidence), np.nan)
        return np.where(stands_in, measured + LAST, confidence), np.where(stands_in, np.inf, -measured)

    def _likeliest(self, result: StepResult, part: slice) -> tuple[Ints, Doubles]:
        """Tokens and their log-probabilities [n, ranks], as many as the rule needs."""
        if result.scores is None:
            nothing = np.zeros((part.stop - part.start, 0))
            return nothing.astype(np.int32), nothing
        here = part, slice(self._rule.ranks)
        return result.scores.ranked[here], result.scores.logprobs[here].astype(np.float64)


def _slices(tree: LaneTree, positions: Ints) -> tuple[LaneSlice, ...]:
    """The slice of `positions` [n], ascending, that each lane has, without lanes that have none."""
    live = tree.live
    bounds = positions.searchsorted([bound for lane in live for bound in (lane.start, lane.end)]).tolist()
    lanes = zip(live, bounds[::2], bounds[1::2], strict=True)
    return tuple(LaneSlice(lane, slice(start, end), tree.forced(lane)) for lane, start, end in lanes if start < end)
