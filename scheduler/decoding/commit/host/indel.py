"""InDel: a block is edited, and two control tokens that the network proposes insert and delete tokens in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from ....contract import Doubles, Floats, Ints
from ...lane_tree import Lane
from ...params import Params
from ..base import CommitDecision, HostCommitRule, StepView, top
from ..segments import Bools


class Proposal(NamedTuple):
    """The output of a step at the n positions of a block."""

    before: Ints  # [n] the block, the mask id where open
    tokens: Ints  # [n]
    confidence: Doubles  # [n] of `tokens`
    ranked: Ints  # [n, ranks] the likeliest tokens, best first
    logprobs: Floats  # [n, ranks]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A block in work: its lane, where its masks are from its start (`original` [n], which moves with its position),
    its forwards without such masks, the blocks that were seen, and the tokens that were written at each place [n]."""

    lane: int
    original: Bools
    spent: int
    seen: frozenset[bytes]
    tried: tuple[frozenset[int], ...]

    @classmethod
    def of(cls, lane: Lane, open_: Bools) -> Self:
        return cls(lane.id, open_.copy(), 0, frozenset(), (frozenset[int](),) * len(open_))


class InDel(HostCommitRule):
    """As long as masks are open that were there when the block began, those above `threshold` commit, or else the best;
    one more for each mask that came later. Then all masks commit, and in each forward committed positions take another
    token of more than `edit_threshold`. Control tokens are applied at once: DELETE removes its position, SPLIT puts a
    mask before it. The block keeps its length: masks fill its end, or what is too much is lost. It is over once a
    forward changes nothing, or after `edit_steps` forwards and one without control tokens. If a block comes again, the
    least certain of its changes takes the best token that was not written there.

    Source: LLaDA2.2's report; SGLang pull request 31773, JointThresholdInDel, whose least confidence of control tokens
    is 0 by default, and is no parameter here. A vocabulary without control tokens is only edited.
    """

    NAME = "indel"
    SOURCE = "LLaDA2.2's report; SGLang pull request 31773, JointThresholdInDel"
    DEFAULTS = {"threshold": 0.5, "edit_threshold": 0.0, "edit_steps": 16}
    revises = True
    scored = False
    ranks = 8

    def __init__(self, params: Params, length: int) -> None:
        self._threshold, self._edit_threshold = params.number("threshold"), params.number("edit_threshold")
        self._edit_steps = params.integer("edit_steps")
        self._block: Block | None = None

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        tokens, stays, blocks = view.canvas_tokens.copy(), np.zeros(len(rules), np.bool_), list[Block]()
        lanes = view.lanes
        bounds = zip(lanes.starts.tolist(), lanes.ends.tolist(), strict=True)
        for number, (rule, lane, (start, end)) in enumerate(zip(rules, lanes.lanes, bounds, strict=True)):
            found = view.canvas_tokens[start:end], view.tokens[start:end], view.confidence[start:end]
            proposal = Proposal(*found, view.ranked[start:end], view.logprobs[start:end])
            tokens[start:end], stays[number], block = rule._changed(proposal, lane, view)
            blocks.append(block)
        for rule, block in zip(rules, blocks, strict=True):
            rule._block = block
        return CommitDecision(tokens, stays=stays)

    def _changed(self, proposal: Proposal, lane: Lane, view: StepView) -> tuple[Ints, bool, Block]:
        """The block after a step, whether it stays in work though it is full, and what is remembered of it."""
        before, open_ = proposal.before, proposal.before == view.mask_id
        block = self._block
        if block is None or block.lane != lane.id or len(block.original) != len(before):
            block = Block.of(lane, open_)
        filling = bool((open_ & block.original).any())
        spent = block.spent + (not filling)
        last = spent > self._edit_steps
        if last:
            proposal = _without(view.controls or (), proposal)
        chosen = self._commits(proposal.confidence, open_, block.original) if filling else open_
        edits = ~open_ & (proposal.tokens != before) & (proposal.confidence > self._edit_threshold)
        changes = np.flatnonzero(chosen | edits)
        if not len(changes):
            return before, False, block
        tokens = proposal.tokens
        if before.tobytes() in block.seen and not last:
            tokens = _untried(proposal, int(changes[proposal.confidence[changes].argmin()]), block.tried)
        written = before.copy()
        written[changes] = tokens[changes]
        tried = list(block.tried)
        for at in changes.tolist():
            tried[at] |= {int(tokens[at])}
        seen = block.seen | {before.tobytes()}
        after, original = applied(written, before, block.original, view.controls, view.mask_id)
        full = not (after == view.mask_id).any()
        return after, full and not last, replace(block, original=original, spent=spent, seen=seen, tried=tuple(tried))

    def _commits(self, confidence: Doubles, open_: Bools, original: Bools) -> Bools:
        """[n] the masks that commit while some are open that were there at first."""
        sure: Bools = open_ & (confidence > self._threshold)
        least = 1 + np.count_nonzero(open_ & ~original)
        if np.count_nonzero(sure) >= least:
            return sure
        best = np.zeros(len(open_), np.bool_)
        best[top(confidence, open_, int(least))] = True
        return best


def applied(
    written: Ints, before: Ints, original: Bools, controls: tuple[int, int] | None, mask_id: int
) -> tuple[Ints, Bools]:
    """The block [n] after the control tokens in `written` [n] have changed it, and its `original` [n] masks. `controls`
    are DELETE and SPLIT."""
    if controls is None or not np.isin(written, controls).any():
        return written, original
    delete, split = controls
    tokens, flags = list[int](), list[bool]()
    for token, old, flag in zip(written.tolist(), before.tolist(), original.tolist(), strict=True):
        if token == split:
            tokens += [mask_id, old]
            flags += [False, flag]
        elif token != delete:
            tokens.append(token)
            flags.append(flag)
    rest = max(0, len(written) - len(tokens))
    tokens, flags = tokens + [mask_id] * rest, flags + [False] * rest
    return np.array(tokens[: len(written)], np.int32), np.array(flags[: len(written)], np.bool_)


def _without(controls: Sequence[int], proposal: Proposal) -> Proposal:
    """The proposal with the best other token in the place of each control token."""
    tokens, confidence = proposal.tokens.copy(), proposal.confidence.copy()
    for at in np.flatnonzero(np.isin(tokens, controls)).tolist():
        others = np.flatnonzero(~np.isin(proposal.ranked[at], controls))
        tokens[at], confidence[at] = proposal.ranked[at, others[0]], np.exp(proposal.logprobs[at, others[0]])
    return proposal._replace(tokens=tokens, confidence=confidence)


def _untried(proposal: Proposal, at: int, tried: Sequence[frozenset[int]]) -> Ints:
    """The proposed tokens [n], with the best one at place `at` that was not written there yet, if it is known."""
    tokens = proposal.tokens.copy()
    for token in proposal.ranked[at].tolist():
        if token not in tried[at] and token != proposal.before[at]:
            tokens[at] = token
            break
    return tokens
