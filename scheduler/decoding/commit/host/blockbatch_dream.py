"""BlockBatch for Dream: a full pass commits one token a branch, and a branch is decoded up to its first end token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....contract import Ints
from ...params import Choice, Params
from ..base import StepView, best
from ..segments import Bools
from ..shared.branches import BlockCanvas, Branched, agreed
from ..shared.speculation import Turn

NO_ENDS = np.zeros(0, np.bool_)


class SeededBranch(BlockCanvas):
    """One canvas, decoded in aligned blocks of `size` up to its first end token, of the tokens `ends` [vocabulary]."""

    def __init__(self, size: int, canvas: Ints, mask_id: int, ranks: int) -> None:
        super().__init__(size, canvas, mask_id, ranks)
        self.ends: Bools = NO_ENDS  # empty: an end token is a token like others
        self.refreshed = 0  # `filled` after its last full pass

    @property
    def limit(self) -> int:
        """The position of the first end token, or else the length."""
        found = np.flatnonzero(self.ends[self.canvas]) if len(self.ends) else NO_ENDS
        return int(found[0]) if len(found) else len(self.canvas)

    @property
    def filled(self) -> int:
        """Tokens up to the first end token, it included."""
        return int(np.count_nonzero(self.canvas[: self.limit + 1] != self.mask_id))

    @property
    def complete(self) -> bool:
        return not (self.canvas[: self.limit] == self.mask_id).any()

    @property
    def rank(self) -> tuple[bool, int, int, int]:
        """Its rank among complete branches, of which the highest wins."""
        return self.limit < len(self.canvas), self.filled, self.limit, self.size

    def snap(self) -> None:
        """Move to the aligned block with the first mask before the first end token, which ends it; or past the end."""
        if self.complete:
            self.start = self.end = len(self.canvas)
            return
        first = int((self.canvas == self.mask_id).argmax())
        self.start = first // self.size * self.size
        self.end = min(self.start + self.size, self.limit)

    def seed(self, view: StepView) -> None:
        """A full pass: the first mask of its block commits, and no probabilities are known."""
        self.probability[:] = 0.0
        first = int((self.canvas == self.mask_id).argmax())
        self.canvas[first] = view.tokens[view.positions == first][0]
        self.refreshed = self.filled

    def observe(self, view: StepView, threshold: float) -> None:
        """Commit within its block what has the `threshold`, or else the best that is no end token, or else the best."""
        self.remember(view)
        places = view.positions
        inside = (places >= self.start) & (places < self.end) & (self.canvas[places] == self.mask_id)
        chosen = inside & (view.confidence >= threshold)
        if not chosen.any():
            words = inside & ~self.ends[view.tokens] if len(self.ends) else inside
            chosen[best(view.confidence, words if words.any() else inside)] = True
        self.canvas[places[chosen]] = view.tokens[chosen]

    def agrees(self, other: SeededBranch) -> bool:
        """True if both have the same token wherever both have one, each up to its first end token."""
        end = min(self.limit, other.limit) + 1
        one, its = self.canvas[:end], other.canvas[:end]
        return bool(((one == its) | (one == self.mask_id) | (its == self.mask_id)).all())

    def learn(self, others: Sequence[SeededBranch], merge_threshold: float) -> bool:
        """Take tokens from `others` in its own block, where its own last output gave them `merge_threshold` or more."""
        probability, tokens = self.likeliest(others)
        filled = (self.canvas == self.mask_id) & (probability >= merge_threshold)
        filled[: self.start] = filled[self.end :] = False
        self.canvas[filled] = tokens[filled]
        return bool(filled.any())

    def follow(self, leader: SeededBranch) -> None:
        """Become a copy of the leader."""
        self.canvas[:], self.refreshed = leader.canvas, leader.refreshed
        self.ranked[:], self.probability[:] = leader.ranked, leader.probability
        self.snap()


class BlockBatchDream(Branched):
    """`branches` canvases are decoded at once, in blocks of `smallest_block` positions, twice as many, four times, ....
    A full pass commits the first mask of each branch's block, whatever its confidence. Each later step computes the
    blocks alone: `threshold`, or else the best that is no end token. Then a branch takes tokens of its block from those
    to its left, if they contradict it nowhere, that its own last output gave `merge_threshold` or more. A branch that
    has more than `sync_lag` tokens less than the leader becomes a copy of it. Once a branch has got `refresh_size`
    tokens since its last full pass, all have one.

    With `end_cycle` nothing is decoded after a branch's first end token. A branch without masks before it is complete,
    and the answer is that of the complete branch with most tokens, or else with the larger blocks. Without it an end
    token is a token like others, and a branch without masks is complete. `share_prompt` is that of `blockbatch`.

    Source: arXiv 2605.29233; Laurence-Wu/BlockBatch dream/generate_blockBatching_original_bulk.py, written from a
    description of it. There `end_cycle` is `stop_on_eos`, by default off. Three things differ. Where a network predicts
    the token after each position, the authors compute a block from the position before it up to its last but one; here
    its last one is computed, too. They keep probabilities above 0.2, here those of the likeliest tokens. And of
    branches that are complete with equally many tokens, their code prefers the one with more progress, which is read
    here as the later end token.
    """

    NAME = "blockbatch-dream"
    SOURCE = "arXiv 2605.29233; Laurence-Wu/BlockBatch dream/generate_blockBatching_original_bulk.py"
    DEFAULTS = {**Branched.DEFAULTS, "end_cycle": True}
    PARAMS = {**Branched.PARAMS, "end_cycle": Choice((True, False))}

    def __init__(self, params: Params, length: int) -> None:
        super().__init__(params, length)
        self._end_cycle = params["end_cycle"] is True
        self.branches: list[SeededBranch] = []
        self._winner: SeededBranch | None = None

    def open(self, canvas: Ints, mask_id: int) -> None:
        """All branches start from `canvas`, which the first one computes for all."""
        self.branches = [SeededBranch(size, canvas.copy(), mask_id, self.ranks) for size in self._sizes]
        self.turns = [Turn(0, self.branches[0].canvas, 0, self._length, whole=True)]

    @property
    def over(self) -> bool:
        return self._winner is not None

    def observe(self, branches: Sequence[StepView]) -> Ints:
        if not self.branches[0].filled:  # the first full pass is that of all
            self.copied += [(0, number) for number in range(1, len(self.branches))]
            for branch in self.branches:
                branch.ends = branches[0].ends if self._end_cycle else NO_ENDS
                branch.seed(branches[0])
        else:
            for turn, view in zip(self.turns, branches, strict=True):
                branch = self.branches[turn.branch]
                if turn.whole:
                    branch.seed(view)
                else:
                    branch.observe(view, self._threshold)
        if not self._ended():
            for branch in self.branches:
                branch.snap()
            self._merge()
        if not self._ended():
            self._sync()
            self._plan()
        return self._canvas()

    def _ended(self) -> bool:
        """Find the winner, if a branch is complete."""
        complete = [branch for branch in self.branches if branch.complete]
        self._winner = max(complete, key=lambda branch: branch.rank, default=None)
        return self.over

    def _merge(self) -> None:
        order = sorted(self.branches, key=lambda branch: -branch.end)
        for rank, branch in enumerate(order):
            if branch.learn([other for other in order[rank + 1 :] if branch.agrees(other)], self._merge_threshold):
                branch.snap()

    def _sync(self) -> None:
        leader = max(range(len(self.branches)), key=lambda number: self.branches[number].filled)
        for number, branch in enumerate(self.branches):
            if self.branches[leader].filled - branch.filled > self._sync_lag:
                branch.follow(self.branches[leader])
                self.copied.append((leader, number))

    def _plan(self) -> None:
        whole = any(branch.filled - branch.refreshed >= self._refresh_size for branch in self.branches)
        self.turns = [
            Turn(number, branch.canvas, 0 if whole else branch.start, self._length if whole else branch.end, whole)
            for number, branch in enumerate(self.branches)
        ]

    def _canvas(self) -> Ints:
        """The winner's canvas up to its end token, or what all agree on from the left."""
        if self._winner is None:
            return agreed(self.branches)
        canvas, end = self._winner.canvas, self._winner.limit + 1
        return np.where(np.arange(self._length) < end, canvas, self._winner.mask_id).astype(np.int32)
