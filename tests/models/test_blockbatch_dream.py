"""BlockBatch's loop for Dream, against the loop as its authors' code is described, one branch and forward at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from asynclane.scheduler.contract import GREEDY, DeviceCommitRule, Placement, Row, Span, StepPlan

from ..support.cases import Network, network
from ..support.driver import Spec

NOTHING = DeviceCommitRule(0, math.inf)
LENGTH, RANKED = 24, 0.2


@dataclass
class Branch:
    """A row of the batch, with keys and values in `pages`."""

    size: int
    x: list[int | None]
    pages: tuple[int, ...]
    seen: dict[int, dict[int, float]] = field(default_factory=dict)  # by position: tokens and their probability
    refreshed: int = 0

    def limit(self, ends: set[int]) -> int:
        return next((at for at, token in enumerate(self.x) if token in ends), len(self.x))

    def first(self, ends: set[int]) -> int | None:
        return next((at for at in range(self.limit(ends)) if self.x[at] is None), None)

    def window(self, ends: set[int]) -> range:
        first = self.first(ends)
        if first is None:
            return range(0)
        start = first // self.size * self.size
        return range(start, min(start + self.size, self.limit(ends)))

    def decoded(self, ends: set[int]) -> int:
        return sum(token is not None for token in self.x[: self.limit(ends) + 1])


class Loop:
    """`ends` is empty without the end-token cycle."""

    def __init__(self, net: Network, prompt: list[int], sizes: list[int], ends: set[int], **numbers: Any) -> None:
        self.net, self.prompt, self.ends, self.numbers = net, prompt, ends, numbers
        each = -(-(len(prompt) + LENGTH) // net.limits.page_size)
        self.branches = [
            Branch(size, [None] * LENGTH, tuple(range(each * number, each * (number + 1))))
            for number, size in enumerate(sizes)
        ]
        self.copies: dict[int, tuple[tuple[int, int], ...]] = {}  # pages to copy before a branch's next forward
        self.forwards = 0

    def probabilities(self, branch: Branch, positions: range) -> np.ndarray:
        """[positions, vocabulary] without the mask. One forward of a block also computes the position before it."""
        mask, begin = self.net.vocabulary.mask_id, len(self.prompt)
        tokens = np.array([*self.prompt, *[mask if token is None else token for token in branch.x]], np.int32)
        start = 0 if len(positions) == LENGTH else begin + positions.start - 1
        span = Span(begin + positions.start, begin + positions.stop, NOTHING)
        row = Row(0, start, span.end, len(tokens), (span,), GREEDY, 0)
        copied = self.copies.pop(id(branch), ())
        logits = self.net.runner.logits(StepPlan((Placement(0, tokens, branch.pages, copied),), (row,))).double()
        logits[:, mask] = -math.inf
        found: np.ndarray = logits.softmax(-1).numpy()
        return found

    def seed(self, branch: Branch, found: np.ndarray) -> None:
        first, branch.seen = branch.first(self.ends), {}
        assert first is not None
        branch.x[first] = int(found[first].argmax())
        branch.refreshed = branch.decoded(self.ends)

    def copy(self, source: Branch, target: Branch) -> None:
        self.copies[id(target)] = tuple(zip(source.pages, target.pages, strict=True))

    def block(self, branch: Branch) -> None:
        window = branch.window(self.ends)
        found = self.probabilities(branch, window)
        best = {at: (float(row.max()), int(row.argmax())) for at, row in zip(window, found, strict=True)}
        for at, row in zip(window, found, strict=True):
            branch.seen[at] = {int(token): float(row[token]) for token in np.flatnonzero(row > RANKED)}
        open_ = [at for at in window if branch.x[at] is None]
        sure = [at for at in open_ if best[at][0] >= self.numbers["threshold"]]
        words = [at for at in open_ if best[at][1] not in self.ends] or open_
        for at in sure or [max(words, key=lambda at: best[at][0])]:
            branch.x[at] = best[at][1]

    def winner(self) -> Branch | None:
        ready = [branch for branch in self.branches if branch.first(self.ends) is None]
        return max(
            ready,
            key=lambda one: (one.limit(self.ends) < LENGTH, one.decoded(self.ends), one.limit(self.ends), one.size),
            default=None,
        )

    def merge(self) -> None:
        order = sorted(self.branches, key=lambda one: -(one.window(self.ends).stop or LENGTH))
        for number, target in enumerate(order):
            end = target.limit(self.ends)
            sources = [
                source
                for source in order[number + 1 :]
                if all(
                    None in pair or pair[0] == pair[1]
                    for pair in list(zip(target.x, source.x, strict=True))[: min(end, source.limit(self.ends)) + 1]
                )
            ]
            for at in target.window(self.ends):
                if target.x[at] is None:
                    options = [source.x[at] for source in sources if source.x[at] is not None]
                    chance = {token: target.seen.get(at, {}).get(token, 0.0) for token in options if token is not None}
                    if chance and max(chance.values()) >= self.numbers["merge_threshold"]:
                        target.x[at] = max(chance, key=lambda token: chance[token])

    def sync(self) -> None:
        leader = max(self.branches, key=lambda one: one.decoded(self.ends))
        for branch in self.branches:
            if leader.decoded(self.ends) - branch.decoded(self.ends) > self.numbers["sync_lag"]:
                branch.x, branch.seen = list(leader.x), {at: dict(given) for at, given in leader.seen.items()}
                branch.refreshed = leader.refreshed
                self.copy(leader, branch)

    def run(self) -> tuple[list[int | None], int]:
        """The winner's canvas up to its end token, and the number of steps."""
        found, self.forwards = self.probabilities(self.branches[0], range(LENGTH)), 1
        for branch in self.branches:
            self.seed(branch, found)
            if branch is not self.branches[0]:
                self.copy(self.branches[0], branch)
        while (winner := self.winner()) is None:
            self.forwards += 1
            if any(one.decoded(self.ends) - one.refreshed >= self.numbers["refresh_size"] for one in self.branches):
                for branch in self.branches:
                    self.seed(branch, self.probabilities(branch, range(LENGTH)))
            else:
                for branch in self.branches:
                    self.block(branch)
            if self.winner() is None:
                self.merge()
            if self.winner() is None:
                self.sync()
        return winner.x[: winner.limit(self.ends) + 1], self.forwards


MERGING = {"threshold": 0.6, "merge_threshold": 0.2, "sync_lag": LENGTH, "refresh_size": 9}
SYNCING = {"threshold": 0.4, "merge_threshold": 0.3, "sync_lag": 2, "refresh_size": 6}


@pytest.mark.parametrize("cycle", [True, False], ids=["end cycle", "no end"])
@pytest.mark.parametrize(
    ("branches", "numbers"), [(1, MERGING), (3, MERGING), (3, SYNCING)], ids=["one branch", "merging", "syncing"]
)
def test_it_is_the_loop_of_the_description(branches: int, numbers: dict[str, Any], cycle: bool) -> None:
    """With one branch that is a dual cache whose full passes commit one token. On a network that predicts the token
    after each position."""
    net = network("shifted")
    params = {**numbers, "branches": branches, "smallest_block": 2, "end_cycle": cycle, "early_stop": False}
    for prompt in (net.prompts[0], net.prompts[2]):
        ends = set(net.vocabulary.ends) if cycle else set()
        loop = Loop(net, prompt, [2 << number for number in range(branches)], ends, **numbers)
        canvas, forwards = loop.run()
        (answer,) = net.run([Spec(prompt, LENGTH, "blockbatch-dream", params)])
        assert (answer.canvas.tolist()[: len(canvas)], answer.steps) == (canvas, forwards)


def test_nothing_after_a_branchs_first_end_token_is_decoded() -> None:
    net = network("shifted")
    given = {"branches": 3, "smallest_block": 4, "threshold": 0.3}
    cut, whole = (
        net.run([Spec(prompt, LENGTH, "blockbatch-dream", {**given, "end_cycle": cycle, "early_stop": False})])[0]
        for prompt in net.prompts[:1]
        for cycle in (True, False)
    )
    canvas, mask = cut.canvas, net.vocabulary.mask_id
    end = int(np.isin(canvas, net.vocabulary.ends).argmax())
    assert 0 < end < LENGTH - 1
    assert (canvas[end + 1 :] == mask).all()
    assert not (whole.canvas == mask).any()
    assert cut.steps < whole.steps
