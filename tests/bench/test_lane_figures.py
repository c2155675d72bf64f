"""Figures of lanes, from the events of an answer that is small enough to be counted by hand."""

from __future__ import annotations

from asynclane.bench.quality.lane_figures import LaneFigures
from asynclane.server.text.lanes import LaneEvent, LaneView


def lane(number: int, parent: int | None, role: str, tokens: str, fate: str = "live") -> LaneView:
    """A lane whose open positions are `_`."""
    return LaneView(number, parent, role, 0, len(tokens), fate, tuple(None if c == "_" else c for c in tokens))


def event(step: int, *lanes: LaneView, refresh: bool = False) -> LaneEvent:
    return LaneEvent(step, (0, 8), refresh, lanes, ())


FORKED = [
    event(0, lane(0, None, "generate", "a_b.____", "forked")),
    event(1, lane(0, None, "refine", "a_b."), lane(1, 0, "generate", "cd._", "forked")),  # 0.75 and 0.75
    event(2, lane(0, None, "refine", "a_b."), lane(1, 0, "refine", "cd."), lane(2, 1, "generate", "____")),
]


def test_lead_overlap_and_calls_are_counted_by_pairs() -> None:
    """In the last call two lanes have forked at different times: two calls, as the paper counts."""
    found = LaneFigures.of([FORKED])
    assert (found.forks, found.most, found.lane_calls, found.lanes, found.paired) == (2, 3, 3, 6, 5)
    assert (found.pair_calls, found.lead, found.ahead_calls) == (3, 0 + 0.25 - 1, 1)
    assert found.paper_calls == 1 + 1 + 2
    assert (found.mean_lead, found.ahead, found.overlap) == (-0.25, 1 / 3, 5 / 6)


def test_a_refresh_brings_all_lanes_to_one_call() -> None:
    later = [event(3, *FORKED[2].lanes, refresh=True), event(4, *FORKED[2].lanes)]
    assert LaneFigures.of([[*FORKED, *later]]).paper_calls == 4 + 1 + 1
    alone = [event(3, refresh=True), event(4, *FORKED[2].lanes)]
    assert LaneFigures.of([[*FORKED, *alone]]).paper_calls == 4 + 1 + 1


def test_sums_are_over_answers_and_none_is_no_division_by_zero() -> None:
    assert LaneFigures.of([FORKED, FORKED]).json() == {
        **{name: 2 * value for name, value in LaneFigures.of([FORKED]).json().items()},
        "most": 3,
        "mean_lead": -0.25,
        "ahead": 1 / 3,
        "overlap": 5 / 6,
    }
    assert LaneFigures.of([[]]).overlap == LaneFigures().mean_lead == 0
