"""Host rules that read several rows of one request in a step, each with a canvas of its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from ....contract import Ints
from ...boundaries import Longs
from ...lane_tree import Layout
from ...params import Params
from ..base import CommitDecision, HostCommitRule, StepView


class Branching(NamedTuple):
    """The canvas at the n positions of a step from now on: `tokens` [n], the mask id where open, each as computed in
    the row of one of the `branches` [n]."""

    tokens: Ints
    branches: Longs


class Speculator(HostCommitRule):
    """A rule whose `drafts` are computed beside the canvas in the next step: canvases that hold all its tokens and
    more. It keeps all tokens of the canvas, so nothing is ever taken back."""

    layout = Layout.DRAFTS

    def __init__(self, params: Params, length: int) -> None:
        self.drafts: list[Ints] = []

    @classmethod
    @abstractmethod
    def choose_among(cls, rules: Sequence[Self], view: StepView, rows: Sequence[range]) -> list[Branching]:
        """The decisions of `rules` [r] from a view in which each of them has several `rows` [r] of the same positions:
        that of its canvas, and then that of each draft. State changes last, as in `choose`."""

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        """Without drafts, for a grammar, which decides what comes next."""
        choices = cls.choose_among(rules, view, [range(number, number + 1) for number in range(len(rules))])
        for rule in rules:
            rule.drafts.clear()
        return CommitDecision(np.concatenate([choice.tokens for choice in choices]))


class Turn(NamedTuple):
    """The next step computes `[start, end)` of the canvas of a `branch`, or its `whole` row."""

    branch: int
    canvas: Ints
    start: int
    end: int
    whole: bool


class Ensemble(HostCommitRule):
    """A rule with several canvases, each with keys and values of its own. The request's canvas holds only what all of
    them agree on for good, until the ensemble is `over` and it holds the winner's."""

    layout = Layout.ENSEMBLE
    turns: list[Turn]  # rows of the next step
    copied: list[tuple[int, int]]  # branches (from, to) whose keys and values are copied before it

    @property
    @abstractmethod
    def over(self) -> bool: ...

    @abstractmethod
    def open(self, canvas: Ints, mask_id: int) -> None:
        """The request is admitted: all branches start from its `canvas`."""

    @abstractmethod
    def observe(self, branches: Sequence[StepView]) -> Ints:
        """Take the views of a step's `turns`. Return the request's canvas [length] from now on."""

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        raise TypeError("an ensemble decides by more than one row")


def extended(canvas: Ints, positions: Longs, tokens: Ints) -> Ints:
    """A copy of a `canvas` with `tokens` [n] at its `positions` [n]."""
    copy = canvas.copy()
    copy[positions] = tokens
    return copy
