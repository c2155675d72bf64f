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
    rule, lane = Quota(steps=5), Lane(Role.GENERATE, 0, 32, masks=32)
    asked = []
    for lane.steps in range(5):
        asked.append(rule.transfer(lane, first=True).sure)
    assert asked == [7, 7, 6, 6, 6]


def test_only_the_leftmost_lane_is_forced() -> None:
    lane = Lane(Role.GENERATE, 0, 32, masks=32)
    assert Threshold(0.9).transfer(lane, first=True) == Transfer(sure=1, threshold=0.9)
    assert Threshold(0.9).transfer(lane, first=False) == Transfer(sure=0, threshold=0.9)
    assert Factor(1.0).transfer(lane, first=False) == Transfer(sure=0, threshold=1.0, factor=1.0)
