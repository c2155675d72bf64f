"""Knobs are honoured or refused by name; rules ask for what their papers say."""

from __future__ import annotations

import math

import pytest

from asynclane.scheduler.contract import Transfer
from asynclane.scheduler.decoders import METHODS, resolve
from asynclane.scheduler.knobs import KNOBS, KnobError
from asynclane.scheduler.rules import Factor, Quota, Threshold
from asynclane.scheduler.tree import Lane, Role


def test_every_default_of_the_table_is_a_value_that_its_knob_admits() -> None:
    for name, method in METHODS.items():
        overrides = {knob: value for knob, value in method.defaults.items() if value is not None}
        resolve(name, overrides, length=64)


def test_naming_a_rule_replaces_the_methods_own() -> None:
    assert isinstance(resolve("asynclane", {}, 64).rule, Threshold)
    assert isinstance(resolve("asynclane", {"factor": 1.0}, 64).rule, Factor)
    assert isinstance(resolve("asynclane", {"steps": 64}, 64).rule, Quota)
    assert isinstance(resolve("llada", {"threshold": 0.5}, 64).rule, Threshold)


@pytest.mark.parametrize(
    ("name", "knobs", "param"),
    [
        ("nothing", {}, "decoder"),
        ("llada", {"max_lanes": 2}, "max_lanes"),
        ("llada", {"cache": "compact"}, "cache"),
        ("asynclane", {"cache": "dual"}, "cache"),
        ("asynclane", {"cache": "none", "refresh_every": 2}, "refresh_every"),
        ("asynclane", {"steps": 64, "threshold": 0.9}, "threshold"),
        ("llada", {"steps": 3}, "steps"),
        ("llada", {"steps": 0}, "steps"),
        ("llada", {"steps": True}, "steps"),
        ("llada", {"early_stop": 1}, "early_stop"),
        ("asynclane", {"threshold": "0.9"}, "threshold"),
        ("asynclane", {"threshold": math.nan}, "threshold"),
        ("asynclane", {"lookahead": "page"}, "lookahead"),
        ("asynclane", {"lookahead": 1.0}, "lookahead"),
        ("asynclane", {"lookahead": 65}, "lookahead"),
        ("asynclane", {"max_lanes": 0}, "max_lanes"),
        ("asynclane", {"min_steps": 0}, "min_steps"),
        ("asynclane", {"min_fill": 1.1}, "min_fill"),
        ("asynclane", {"draft_threshold": -0.1}, "draft_threshold"),
        ("asynclane", {"draft_threshold": "on"}, "draft_threshold"),
        ("asynclane", {"end_threshold": True}, "end_threshold"),
        ("asynclane", {"block_length": "long"}, "block_length"),
        ("asynclane", {"block_length": "auto", "steps": 64}, "block_length"),
        ("asynclane", {"block_length": "auto", "siblings": "isolated"}, "block_length"),
        ("fast-dllm", {"block_length": "auto"}, "block_length"),
        ("asynclane", {"boundary": "word"}, "boundary"),
        ("asynclane", {"boundary": "stable"}, "stable_steps"),
        ("asynclane", {"siblings": "none"}, "siblings"),
        ("asynclane", {"siblings": "isolated", "cache": "none"}, "siblings"),
        ("asynclane", {"siblings": "isolated", "lookahead": "canvas"}, "siblings"),
        ("asynclane", {"factor": 1.0, "later_threshold": 0.98}, "later_threshold"),
        ("asynclane", {"steps": 64, "later_threshold": 1.0}, "later_threshold"),
        ("asynclane", {"refresh_on": "tokens"}, "refresh_on"),
        ("asynclane", {"cache": "prefix", "refresh_on": "forks"}, "refresh_on"),
        ("asynclane", {"cache": "prefix", "reuse": False}, "reuse"),
        ("asynclane", {"cache": "none", "settle": True}, "settle"),
        ("fast-dllm", {"draft_threshold": 0.9}, "draft_threshold"),
    ],
)
def test_a_knob_that_does_not_fit_is_refused_by_name(name: str, knobs: dict[str, object], param: str) -> None:
    with pytest.raises(KnobError) as refused:
        resolve(name, knobs, length=64)
    assert refused.value.param == param


def test_every_knob_belongs_to_some_decoder() -> None:
    used = {"steps", "threshold", "factor"}.union(*(method.defaults for method in METHODS.values()))
    assert used == set(KNOBS)


def test_a_quota_spreads_masks_evenly_with_the_rest_first() -> None:
    rule, lane, asked = Quota(steps=5), Lane(0, None, Role.GENERATE, 0, 32, masks=32), []
    for lane.steps in range(5):
        asked.append(rule.transfer(lane, first=True).sure)
        lane.masks -= asked[-1]
    assert asked == [7, 7, 6, 6, 6]


def test_a_lane_is_done_within_its_budget_of_calls_whenever_it_was_forked() -> None:
    for masks in range(1, 33):
        for steps in range(1, 12):
            lane, asked = Lane(0, None, Role.REFINE, 0, 32, masks), []
            while lane.masks:
                asked.append(Quota(steps).transfer(lane, first=False).sure)
                lane.masks -= asked[-1]
                lane.steps += 1
            assert len(asked) <= steps
            assert sum(asked) == masks


def test_later_lanes_may_have_a_stricter_threshold() -> None:
    rule = resolve("asynclane", {"later_threshold": 0.98, "threshold": 0.9}, 64).rule
    lane = Lane(0, None, Role.GENERATE, 0, 32, 32)
    assert rule.transfer(lane, first=True) == Transfer(sure=1, threshold=0.9)
    assert rule.transfer(lane, first=False) == Transfer(sure=0, threshold=0.98)


def test_commit_and_advance_leaves_a_refine_lane_one_call() -> None:
    rule = resolve("asynclane", {"siblings": "commit"}, 64).rule
    assert rule.transfer(Lane(0, None, Role.REFINE, 0, 9, 5), first=True).sure == 5
    assert rule.transfer(Lane(1, 0, Role.GENERATE, 9, 41, 30), first=False).sure == 0


def test_only_the_leftmost_lane_is_forced() -> None:
    lane = Lane(0, None, Role.GENERATE, 0, 32, masks=32)
    assert Threshold(0.9).transfer(lane, first=True) == Transfer(sure=1, threshold=0.9)
    assert Threshold(0.9).transfer(lane, first=False) == Transfer(sure=0, threshold=0.9)
    assert Factor(1.0).transfer(lane, first=False) == Transfer(sure=0, threshold=1.0, factor=1.0)
