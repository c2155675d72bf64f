"""Learnt rules: their base class, the scale of their input, and the weights `NAME.npz` in this folder, which
`asynclane.training.controllers` makes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import ClassVar, NamedTuple, Self

import numpy as np

from ....contract import Doubles, Floats
from ...params import Params
from ..base import HostCommitRule, StepView
from ..segments import Longs

LEAST_DOUBT = 1e-4

Weights = Mapping[str, Floats]


class Observed(NamedTuple):
    """The input of a learnt rule's network in one step, `seen` [rows, columns]. It has a score for each of the m open
    positions of lanes, which are at the indices `at` [m] of the view: number `place` [m] of all that it computes."""

    at: Longs
    seen: Floats
    place: Longs


class LearntRule(HostCommitRule):
    """A rule with a small network. Training records what `observe` returns, so it learns from the numbers that the
    server computes."""

    SHAPES: ClassVar[Mapping[str, tuple[int, ...]]]  # of its weights, by name
    OUTPUTS: ClassVar[int] = 1  # scores that its network computes for each row of input

    def __init__(self, params: Params, length: int, learnt: Weights | None = None) -> None:
        """`learnt` are the weights; None: those in this folder."""
        self.learnt = weights(self.NAME) if learnt is None else learnt

    @classmethod
    @abstractmethod
    def observe(cls, rules: Sequence[Self], view: StepView) -> Observed:
        """The input of the network. Changes no state."""

    @classmethod
    @abstractmethod
    def scores(cls, rules: Sequence[Self], view: StepView, observed: Observed) -> Doubles:
        """The probability [m] that the proposal at each of the `observed` positions is final."""


@cache
def weights(name: str) -> Weights:
    """The arrays of the rule `name`, read at its first use."""
    with files(__package__).joinpath(f"{name}.npz").open("rb") as file, np.load(file) as found:
        return {key: found[key] for key in found.files}


def certainty(confidence: Doubles) -> Doubles:
    """From 0 to 1, by the magnitude of the doubt: 0.9 is as far from 0.99 as from 0."""
    return -np.log10(np.clip(1.0 - confidence, LEAST_DOUBT, 1.0)) / 4.0


def product(rows: Floats, matrix: Floats) -> Floats:
    """The product [n, m] of `rows` [n, k] with a `matrix` [k, m]. Each row's result is the same whatever rows come with
    it, and wherever it stands among them: a library chooses its kernel by both, so the rows are multiplied one by
    one."""
    found: Floats = (rows[:, None] @ matrix)[:, 0]
    return found
