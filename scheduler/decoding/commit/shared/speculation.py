"""Judges that see more than one row of a request in a step, each of a canvas of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from ....contract import Ints
from ...boundaries import Longs
from ..base import CommitDecision, HostRuleDefaults, StepView


class Branching(NamedTuple):
    """What stands at the n positions of a step from now on: `tokens` [n], the mask id where nothing does; each was seen
    in the row of one of the `branches` [n]."""

    tokens: Ints
    branches: Longs


class Speculator(HostRuleDefaults, ABC):
    """A judge whose `drafts` are computed beside the canvas in the next step: canvases that hold all that it holds, and
    more. What it keeps holds all that the canvas held, so nothing is ever taken back."""

    def __init__(self) -> None:
        self.drafts: list[Ints] = []

    @abstractmethod
    def choose_among(self, branches: Sequence[StepView]) -> Branching:
        """Of what a step shows of the canvas, and then of each draft."""

    def choose(self, view: StepView) -> CommitDecision:
        """Where there may be no drafts: a grammar decides what comes next."""
        tokens = self.choose_among([view]).tokens
        self.drafts.clear()
        return CommitDecision(tokens)


class Turn(NamedTuple):
    """The next step computes `[start, end)` of the canvas of a `branch`, or all of its row if `whole`."""

    branch: int
    canvas: Ints
    start: int
    end: int
    whole: bool


class Ensemble(HostRuleDefaults, ABC):
    """A judge with canvases of its own, each with keys and values of its own. The request's canvas holds only what all
    of them agree on for good, until it is `over` and holds what has won."""

    turns: list[Turn]  # rows of the next step
    copied: list[tuple[int, int]]  # of keys and values, from one branch to another, before it

    @property
    @abstractmethod
    def over(self) -> bool: ...

    @abstractmethod
    def open(self, canvas: Ints, mask_id: int) -> None:
        """The request is admitted: all branches start from its `canvas`."""

    @abstractmethod
    def observe(self, branches: Sequence[StepView]) -> Ints:
        """A step has shown this of its `turns`. The request's canvas [length] from now on."""

    def choose(self, view: StepView) -> CommitDecision:
        raise TypeError("it decides by more than one row")


def extended(view: StepView, tokens: Ints, places: Longs) -> Ints:
    """A canvas that holds `tokens` [n], and what `view` proposes at these places."""
    canvas = view.canvas.copy()
    filled = tokens.copy()
    filled[places] = view.tokens[places]
    canvas[view.positions] = filled
    return canvas
