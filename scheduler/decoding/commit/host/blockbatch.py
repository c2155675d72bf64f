"""BlockBatch: decodes the same answer in blocks of several lengths at once, which exchange tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....contract import Ints
from ...params import Params
from ..base import StepView, best
from ..segments import Bools
from ..shared.branches import BlockCanvas, Branched, agreed
from ..shared.speculation import Turn

END_RANKS = 4  # an end token that is not among so many likeliest tokens has no probability


class Branch(BlockCanvas):
    """One canvas, decoded in aligned blocks of `size`."""

    def __init__(self, size: int, canvas: Ints, mask_id: int, ranks: int) -> None:
        super().__init__(size, canvas, mask_id, ranks)
        self.decoded = 0  # tokens that it has committed itself, or copied with a whole canvas
        self.forwards = 0
        self.blocks = 0  # begun since its last full pass
        self.stale = False
        self.ended = -1.0  # probability of the end token in its full block, negative without one

    @property
    def done(self) -> bool:
        return self.start >= len(self.canvas)

    @property
    def full(self) -> bool:
        """True if its block has no masks."""
        return not (self.canvas[self.start : self.end] == self.mask_id).any()

    def snap(self) -> None:
        """Move to the aligned block with the first mask, or past the end."""
        masks = np.flatnonzero(self.canvas == self.mask_id)
        first = int(masks[0]) if len(masks) else len(self.canvas)
        self.start = first // self.size * self.size if len(masks) else first
        self.end = min(self.start + self.size, len(self.canvas))

    def advance(self, refresh_size: int) -> None:
        self.snap()
        if not self.done:
            self.blocks += 1
            self.stale = self.stale or self.blocks * self.size >= refresh_size

    def observe(self, view: StepView, threshold: float) -> None:
        """Commit within its block what has the `threshold`, or else the best. The view contains at least the block."""
        self.forwards += 1
        self.remember(view)
        places = view.positions
        inside = (places >= self.start) & (places < self.end) & (self.canvas[places] == self.mask_id)
        chosen = inside & (view.confidence >= threshold)
        if inside.any() and not chosen.any():
            chosen[best(view.confidence, inside)] = True
        self.canvas[places[chosen]] = view.tokens[chosen]
        self.decoded += int(chosen.sum())

    def look_for_end(self, ends: Bools) -> None:
        """After a step that filled its block: find the probability of the block's first end token."""
        block = self.canvas[self.start : self.end]
        if not self.full or not ends[block].any():
            return
        at = self.start + int(ends[block].argmax())
        self.ended = _bfloat16(float(self.probability_of(self.canvas)[at]))

    def agrees(self, other: Branch) -> bool:
        both = (self.canvas != self.mask_id) & (other.canvas != self.mask_id)
        return bool((self.canvas[both] == other.canvas[both]).all())

    def learn(self, others: Sequence[Branch], merge_threshold: float) -> bool:
        """Take tokens from `others` within their blocks, where this canvas is open and its own last output gave them
        more than `merge_threshold`."""
        inside = np.zeros(len(self.canvas), np.bool_)
        for other in others:
            inside[other.start : other.end] = True
        probability, tokens = self.likeliest(others)
        filled = inside & (self.canvas == self.mask_id) & (probability > merge_threshold)
        self.canvas[filled] = tokens[filled]
        return bool(filled.any())

    def follow(self, leader: Branch) -> None:
        self.canvas[:] = leader.canvas
        self.decoded = leader.decoded
        self.snap()


class BlockBatch(Branched):
    """`branches` canvases are decoded at once, in blocks of `smallest_block` positions, twice as many, four times, ...,
    each as Fast-dLLM with a dual cache does: `threshold`, or else the best. After each step a branch takes tokens from
    those to its left, if they contradict it nowhere, that its own last output gave more than `merge_threshold`. A
    branch that has committed more than `sync_lag` tokens less than the leader becomes a copy of it, keys and values
    included. Once a branch has begun blocks of `refresh_size` positions since its last full pass, all have one, which
    commits too. The first branch that fills a block with an end token in it wins, of several the one most certain of
    it; if none does, the one that comes farthest. Source: arXiv 2605.29233; Laurence-Wu/BlockBatch
    llada/generate_blockBatching_original_bulk.py.

    With `share_prompt` all branches read one set of the prompt's keys and values, those of the first full pass: later
    ones compute the canvas alone. That is ours; it takes fewer pages and fewer computed positions.

    The authors use blocks of 4 to 128, six branches; the default here is four from 8 on. Their blocks must divide the
    canvas: here the last one may be shorter. They count the forwards of the winner; here a request's forwards are all
    of them. They round the logits of an end token to bfloat16, here its probability is rounded: of several equally
    certain branches the smallest blocks win. With `early_stop` a request ends once all branches agree on everything up
    to an end token. Streams get what all branches agree on, from the left: none ever takes that back. For a shifted
    network the authors have a variant, `blockbatch-dream`.
    """

    NAME = "blockbatch"
    SOURCE = "arXiv 2605.29233; Laurence-Wu/BlockBatch llada/generate_blockBatching_original_bulk.py"

    def __init__(self, params: Params, length: int) -> None:
        super().__init__(params, length)
        self.ranks = max(END_RANKS, self.ranks)
        self.branches: list[Branch] = []
        self._winner: int | None = None

    def open(self, canvas: Ints, mask_id: int) -> None:
        """All branches start from `canvas`, which the first one computes for all."""
        self.branches = [Branch(size, canvas.copy(), mask_id, self.ranks) for size in self._sizes]
        self.turns = [Turn(0, self.branches[0].canvas, 0, self._length, whole=True)]

    @property
    def over(self) -> bool:
        return self._winner is not None

    @property
    def winner(self) -> Branch | None:
        return None if self._winner is None else self.branches[self._winner]

    def _first_to_end(self) -> int | None:
        """The branch most certain that its full block ends the answer; of equals the one with the smallest blocks."""
        ended = [number for number, branch in enumerate(self.branches) if branch.ended >= 0.0]
        return max(ended, key=lambda number: self.branches[number].ended, default=None)

    def observe(self, branches: Sequence[StepView]) -> Ints:
        if not any(branch.forwards for branch in self.branches):
            for branch in self.branches:
                branch.observe(branches[0], self._threshold)
            self.copied += [(0, number) for number in range(1, len(self.branches))]
            self._exchange()
        elif self.turns[0].whole:
            for turn, view in zip(self.turns, branches, strict=True):
                branch = self.branches[turn.branch]
                branch.observe(view, self._threshold)
                branch.blocks, branch.stale = 0, False
            self._go_on()
        else:
            for turn, view in zip(self.turns, branches, strict=True):
                self.branches[turn.branch].observe(view, self._threshold)
                self.branches[turn.branch].look_for_end(view.ends)
            self._winner = self._first_to_end()
            if self._winner is None:
                self._exchange()
        return self._canvas()

    def _exchange(self) -> None:
        """Advance full blocks and exchange tokens between branches."""
        for branch in self.branches:
            if not branch.done and branch.full:
                branch.advance(self._refresh_size)
        self._merge()
        self._sync()
        active = [number for number, branch in enumerate(self.branches) if not branch.done]
        if any(self.branches[number].stale for number in active):
            self.turns = [Turn(number, self.branches[number].canvas, 0, self._length, whole=True) for number in active]
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Let the next step compute the blocks that have masks."""
        if all(branch.done for branch in self.branches):
            self._winner = 0  # all are full, so none has come farther
            return
        self.turns = [
            Turn(number, branch.canvas, branch.start, branch.end, whole=False)
            for number, branch in enumerate(self.branches)
            if not branch.done and not branch.full
        ]
        if not self.turns:  # a full pass has filled them
            self._exchange()

    def _merge(self) -> None:
        order = sorted((branch for branch in self.branches if not branch.done), key=lambda branch: -branch.end)
        if not any(branch.decoded for branch in self.branches):
            return
        for rank, branch in enumerate(order):
            others = [other for other in order[rank + 1 :] if branch.agrees(other)]
            if branch.learn(others, self._merge_threshold) and branch.full:
                branch.advance(self._refresh_size)

    def _sync(self) -> None:
        leader = max(range(len(self.branches)), key=lambda number: self.branches[number].decoded)
        for number, branch in enumerate(self.branches):
            lag = self.branches[leader].decoded - branch.decoded
            if number != leader and not branch.done and lag > self._sync_lag:
                branch.follow(self.branches[leader])
                self.copied.append((leader, number))

    def _canvas(self) -> Ints:
        """The winner's canvas, or what all agree on from the left."""
        return agreed(self.branches) if self.winner is None else self.winner.canvas


def _bfloat16(number: float) -> float:
    """Round to bfloat16, half to even."""
    bits = int(np.float32(number).view(np.uint32))
    bits += 0x7FFF + (bits >> 16 & 1)
    return float(np.uint32(bits & 0xFFFF0000).view(np.float32))
