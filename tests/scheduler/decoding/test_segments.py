"""Each operation on segments gives what numpy gives for each segment alone."""

from __future__ import annotations

import numpy as np
import pytest

from asynclane.scheduler.contract import Doubles
from asynclane.scheduler.decoding.commit.base import best, top
from asynclane.scheduler.decoding.commit.segments import NONE, Bools, Segments

SEEDS = range(40)


class Drawn:
    """Segments of random sizes, some with gaps after them, and values of which many are equal."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        sizes, gaps = random.integers(1, 9, 12), random.integers(0, 3, 12) * (seed % 2)
        ends = np.cumsum(sizes + gaps) - gaps
        self.size = int(ends[-1] + gaps[-1])
        self.segments = Segments(ends - sizes, ends, self.size)
        self.slices = [slice(int(end - size), int(end)) for size, end in zip(sizes, ends, strict=True)]
        self.score: Doubles = random.integers(-2, 3, self.size) / 2.0
        self.score[random.random(self.size) < 0.1] = -np.inf
        self.among: Bools = random.random(self.size) < random.choice([0.1, 0.5, 0.9])
        self.count = random.integers(0, 6, 12)


@pytest.fixture(params=SEEDS)
def drawn(request: pytest.FixtureRequest) -> Drawn:
    return Drawn(request.param)


def test_reductions(drawn: Drawn) -> None:
    segments, among, score = drawn.segments, drawn.among, drawn.score
    assert len(segments) == len(drawn.slices)
    assert segments.any(among).tolist() == [bool(among[here].any()) for here in drawn.slices]
    assert segments.count(among).tolist() == [int(among[here].sum()) for here in drawn.slices]
    highest = [score[here].max(initial=-np.inf, where=among[here]) for here in drawn.slices]
    assert segments.highest(score, among).tolist() == highest


def test_spread_and_inside(drawn: Drawn) -> None:
    number, inside = np.full(drawn.size, 99), np.zeros(drawn.size, np.bool_)
    for at, here in enumerate(drawn.slices):
        number[here], inside[here] = at, True
    assert drawn.segments.spread(range(12), outside=99).tolist() == number.tolist()
    assert drawn.segments.inside.tolist() == inside.tolist()


def test_the_first_and_the_best_are_the_leftmost(drawn: Drawn) -> None:
    segments, among, score = drawn.segments, drawn.among, drawn.score
    first = [here.start + int(among[here].argmax()) if among[here].any() else NONE for here in drawn.slices]
    assert segments.first(among).tolist() == first
    better = [here.start + best(score[here], among[here]) if among[here].any() else NONE for here in drawn.slices]
    assert segments.best(score, among).tolist() == better


def test_leading(drawn: Drawn) -> None:
    expected = np.zeros(drawn.size, np.bool_)
    for here in drawn.slices:
        expected[here] = np.logical_and.accumulate(drawn.among[here])
    inside = drawn.segments.inside
    assert (drawn.segments.leading(drawn.among) & inside).tolist() == expected.tolist()


@pytest.mark.parametrize("few", [False, True])
def test_top_takes_the_leftmost_of_equals(drawn: Drawn, few: bool) -> None:
    count = np.minimum(drawn.count, 1) if few else drawn.count
    expected = np.zeros(drawn.size, np.bool_)
    for here, some in zip(drawn.slices, count.tolist(), strict=True):
        expected[here.start + top(drawn.score[here], drawn.among[here], some)] = True
    assert drawn.segments.top(drawn.score, drawn.among, count).tolist() == expected.tolist()


def test_falling(drawn: Drawn) -> None:
    found = drawn.segments.falling(drawn.score, drawn.among)
    for row, here in zip(found, drawn.slices, strict=True):
        values = np.sort(drawn.score[here][drawn.among[here]])[::-1]
        assert row.tolist() == [*values, *[-np.inf] * (len(row) - len(values))]


def test_what_is_not_a_number_is_still_chosen() -> None:
    """A lane that must commit something does."""
    segments = Segments(np.array([0, 2]), np.array([2, 4]), 4)
    score, among = np.array([np.nan, np.nan, 0.5, np.nan]), np.ones(4, np.bool_)
    assert segments.best(score, among)[0] == 0
    assert segments.top(score, among, 1).tolist()[:2] == [True, False]
    assert segments.top(score, among, 2).all()


def test_there_may_be_no_segment() -> None:
    segments, nothing = Segments(np.zeros(0, np.intp), np.zeros(0, np.intp), 3), np.zeros(3, np.bool_)
    assert not len(segments.best(np.zeros(3), ~nothing))
    assert not segments.top(np.zeros(3), ~nothing, 2).any()
    assert not segments.leading(~nothing).any()
