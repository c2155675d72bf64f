"""Parameters are honoured or refused by name; rules need what their papers say."""

from __future__ import annotations

import dataclasses
import math

import pytest

from asynclane.scheduler.contract import DeviceCommitRule, Measure
from asynclane.scheduler.decoding.attention_pattern import PLAIN, AttentionPattern, Drafter
from asynclane.scheduler.decoding.cache import CACHES
from asynclane.scheduler.decoding.commit import HOST_RULES
from asynclane.scheduler.decoding.commit.base import CommitRule
from asynclane.scheduler.decoding.commit.device import EntropyBound, Factor, Quota, Threshold, Timesteps
from asynclane.scheduler.decoding.lane_tree import Lane, Role
from asynclane.scheduler.decoding.params import PARAMS, ParamError
from asynclane.scheduler.decoding.registry import DECODERS
from asynclane.scheduler.decoding.resolve import ALL_PARAMS, resolve, suits


def test_every_default_of_the_table_is_a_value_that_its_parameter_admits() -> None:
    one = AttentionPattern(block_size=1)
    patterns = (
        PLAIN,
        AttentionPattern(block_size=16),
        dataclasses.replace(one, known_first=True),
        dataclasses.replace(one, canvas_length=16),
        dataclasses.replace(one, logit_shift=1, drafter=Drafter()),
    )
    for name, method in DECODERS.items():
        overrides = {param: value for param, value in method.defaults.items() if value is not None}
        resolve(name, overrides, 64, next(pattern for pattern in patterns if suits(name, pattern)))


def test_a_network_refuses_a_decoder_by_the_name_that_was_sent() -> None:
    one, block = AttentionPattern(block_size=1), AttentionPattern(block_size=16)
    patterns = (PLAIN, block, dataclasses.replace(one, known_first=True), dataclasses.replace(one, canvas_length=16))
    refused = [(name, pattern) for name in DECODERS for pattern in patterns if not suits(name, pattern)]
    assert len(refused) > len(DECODERS)
    for name, pattern in refused:
        with pytest.raises(ParamError) as error:
            resolve(name, {}, 64, pattern)
        message = str(error.value)
        assert error.value.param == "decoder"
        assert f"decoder {name!r}" in message or message.startswith("this decoder"), message
        assert "sees the whole canvas" not in message or pattern is PLAIN or "models that see" in message, message


def test_naming_a_rule_replaces_the_methods_own() -> None:
    assert isinstance(resolve("asynclane", {}, 64).rule, Threshold)
    assert isinstance(resolve("asynclane", {"factor": 1.0}, 64).rule, Factor)
    assert isinstance(resolve("asynclane", {"steps": 64}, 64).rule, Quota)
    assert isinstance(resolve("llada", {"threshold": 0.5}, 64).rule, Threshold)
    assert isinstance(resolve("asynclane", {"entropy_bound": 0.5}, 64).rule, EntropyBound)
    assert isinstance(resolve("entropy-bound", {"factor": 0.5}, 64).rule, Factor)
    assert isinstance(resolve("dream", {}, 64).rule, Timesteps)
    assert isinstance(resolve("dream", {"threshold": 0.5}, 64).rule, Threshold)


@pytest.mark.parametrize(
    ("name", "params", "param"),
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
        ("asynclane", {"lookahead": 1.0}, "lookahead"),
        ("asynclane", {"lookahead": 65}, "lookahead"),
        ("asynclane", {"min_fill": 1.1}, "min_fill"),
        ("asynclane", {"draft_threshold": "on"}, "draft_threshold"),
        ("asynclane", {"end_threshold": True}, "end_threshold"),
        ("asynclane", {"block_length": "auto", "steps": 64}, "block_length"),
        ("asynclane", {"block_length": "auto", "siblings": "isolated"}, "block_length"),
        ("asynclane", {"block_length": "auto", "lookahead": 32}, "lookahead"),
        ("fast-dllm", {"block_length": "auto"}, "block_length"),
        ("asynclane", {"boundary": "stable"}, "stable_steps"),
        ("asynclane", {"siblings": "isolated", "cache": "none"}, "siblings"),
        ("asynclane", {"siblings": "isolated", "lookahead": "canvas"}, "siblings"),
        ("asynclane", {"factor": 1.0, "later_threshold": 0.98}, "later_threshold"),
        ("asynclane", {"steps": 64, "later_threshold": 1.0}, "later_threshold"),
        ("asynclane", {"cache": "prefix", "refresh_on": "forks"}, "refresh_on"),
        ("asynclane", {"cache": "prefix", "reuse": False}, "reuse"),
        ("asynclane", {"cache": "none", "settle": True}, "settle"),
        ("fast-dllm", {"draft_threshold": 0.9}, "draft_threshold"),
        ("fast-dllm", {"alg": "entropy"}, "alg"),
        ("d2f", {"steps": 64, "threshold": 0.9}, "threshold"),
        ("d3llm", {"active_threshold": 0.5}, "active_threshold"),
        ("d3llm", {"threshold": 0.9}, "threshold"),
        ("slowfast", {"lookahead": 0}, "cache"),
        ("dream", {"alg": "random"}, "alg"),
        ("dream", {"alg": "origin", "alg_temp": 0.2}, "alg_temp"),
        ("dream", {"steps": 65}, "steps"),
        ("dream", {"threshold": 0.9, "alg": "entropy"}, "alg"),
        ("dream", {"factor": 1.0, "eps": 0.01}, "eps"),
        ("dream", {"entropy_bound": 1.0, "eps": 0.01}, "eps"),
        ("dream", {"block_length": 32}, "block_length"),
        ("s2d2", {}, "decoder"),
        ("fast-dllm", {"rule": "s2d2"}, "rule"),
        ("dsb", {"steps": 64}, "steps"),
        ("dsb", {"max_block_length": 0}, "max_block_length"),
        ("ce", {"wait_most": 2}, "wait_most"),
        ("daedal", {"cache": "dual"}, "cache"),
        ("asynclane", {"rule": "daedal", "cache": "none"}, "rule"),
        ("dream", {"cache": "entropy"}, "cache"),
        ("saber", {"cache": "entropy"}, "cache"),
        ("asynclane", {"cache": "entropy", "siblings": "commit"}, "siblings"),
        ("lopa", {"cache": "entropy"}, "cache"),
        ("dsb", {"rule": "editing"}, "rule"),
        ("dsb", {"rule": "wino"}, "rule"),
        ("asynclane", {"cache": "dsb"}, "cache"),
        ("fast-dllm", {"prefix_window": 3}, "prefix_window"),
        ("entropy-bound", {"threshold": 0.9, "bound_on": "all"}, "bound_on"),
        ("entropy-bound", {"entropy_bound": 0.1, "threshold": 0.9}, "entropy_bound"),
        ("asynclane", {"entropy_bound": 0.1, "later_threshold": 0.98}, "later_threshold"),
        ("dream", {"cache": "compact"}, "cache"),
        ("ccd", {"steps": 3}, "steps"),
        ("credit", {"kl_threshold": 0.1}, "kl_threshold"),
        ("prophet", {"answer_at": 64}, "answer_at"),
        ("tspd", {"horizon": 4}, "horizon"),
        ("asynclane", {"rule": "learn2pd", "coverage": 0.5}, "coverage"),
        ("asynclane", {"rule": "klass", "siblings": "isolated"}, "siblings"),
        ("d2f", {"rule": "editing"}, "rule"),
        ("d2f", {"rule": "leap"}, "rule"),
        ("asynclane", {"credit_alpha": 0.5}, "credit_alpha"),
        ("llada", {"early_stop": "answer"}, "early_stop"),
        ("fast-dllm", {"reload_every": 4}, "reload_every"),
        ("fast-dllm", {"cache": "d2", "reload_every": 4}, "reload_every"),
        ("fast-dllm", {"cache": "delayed", "candidates": 4}, "candidates"),
        ("asynclane", {"cache": "delayed", "refresh_every": 4}, "refresh_every"),
        ("d3llm", {"cache_delay": 2}, "cache_delay"),
        ("window", {"block_length": 32}, "block_length"),
        ("asynclane", {"stop_threshold": 0.9, "lookahead": 0}, "stop_threshold"),
        ("asynclane", {"stop_threshold": 0.9, "early_stop": False}, "stop_threshold"),
        ("asynclane", {"stop_threshold": 0.4}, "stop_threshold"),
        ("asynclane", {"stop_threshold": 0.9, "end_threshold": "off"}, "stop_threshold"),
        ("asynclane-paper", {"stop_threshold": 0.9}, "stop_threshold"),
        ("window", {"threshold": 0.9, "active_tokens": 0}, "active_tokens"),
    ],
)
def test_a_parameter_that_does_not_fit_is_refused_by_name(name: str, params: dict[str, object], param: str) -> None:
    with pytest.raises(ParamError) as refused:
        resolve(name, params, length=64)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("name", "params", "block_size", "message"),
    [
        (
            "llada",
            {"steps": 8},
            0,
            "steps must be a multiple of the canvas's 16 blocks (max_tokens 512 / block_length 32), not 8",
        ),
        (
            "fast-dllm-v2",
            {"steps": 8},
            32,
            "steps must be a multiple of the canvas's 64 blocks (max_tokens 512 / sub_block_length 8), not 8",
        ),
        ("asynclane", {"block_length": 0}, 0, 'block_length must be a whole number from 1 to 4096, or "auto", not 0'),
        ("asynclane", {"early_stop": None}, 0, 'early_stop must be one of true, false, "block", not null'),
    ],
)
def test_a_refusal_says_what_its_limits_come_from(
    name: str, params: dict[str, object], block_size: int, message: str
) -> None:
    with pytest.raises(ParamError) as refused:
        resolve(name, params, 512, AttentionPattern(block_size=block_size))
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("params", "threshold"),
    [
        ({}, 0.95),
        ({"end_threshold": 0.97}, 0.97),
        ({"end_threshold": "off"}, math.inf),
        ({"early_stop": False}, math.inf),
        ({"early_stop": "block"}, math.inf),
        ({"stop_threshold": "off"}, math.inf),
        ({"stop_threshold": 0.9}, 0.9),
    ],
    ids=str,
)
def test_a_default_that_other_parameters_exclude_gives_way(params: dict[str, object], threshold: float) -> None:
    assert resolve("asynclane", params, length=64).stop_threshold == threshold


def test_every_parameter_belongs_to_some_decoder() -> None:
    used = {"steps", "threshold", "factor", "entropy_bound"}.union(*(method.defaults for method in DECODERS.values()))
    used |= {param for rule in HOST_RULES.values() for param in rule.DEFAULTS}
    used |= {param for cached in CACHES.values() for param in cached.DEFAULTS}
    assert used == set(ALL_PARAMS)


def test_a_quota_spreads_masks_evenly_with_the_rest_first() -> None:
    rule, lane, found = Quota(steps=5), Lane(0, None, Role.GENERATE, 0, 32, masks=32), []
    for lane.steps in range(5):
        found.append(rule.for_lane(lane, first=True).sure)
        lane.masks -= found[-1]
    assert found == [7, 7, 6, 6, 6]


def test_a_lane_is_done_within_its_budget_of_calls_whenever_it_was_forked() -> None:
    for masks in (1, 2, 7, 31, 32):
        for steps in (1, 2, 5, 11):
            lane, found = Lane(0, None, Role.REFINE, 0, 32, masks), []
            while lane.masks:
                found.append(Quota(steps).for_lane(lane, first=False).sure)
                lane.masks -= found[-1]
                lane.steps += 1
            assert len(found) <= steps
            assert sum(found) == masks


def taken(rule: CommitRule, masks: int, steps: int) -> list[int]:
    """How many of `masks` each call takes for sure."""
    lane, counts = Lane(0, None, Role.GENERATE, 0, masks, masks), []
    for lane.steps in range(steps):
        counts.append(rule.for_lane(lane, first=True).sure)
        lane.masks -= counts[-1]
    return counts


@pytest.mark.parametrize("length", [64, 256, 512])
def test_dreams_first_call_of_one_a_token_takes_none_and_its_last_two(length: int) -> None:
    """`eps` leaves 0.999 of a token to the first; the published code truncates it."""
    assert taken(resolve("dream", {}, length).rule, length, length) == [0, *[1] * (length - 2), 2]
    half = length // 2
    assert taken(resolve("dream", {"steps": half}, length).rule, length, half) == [1, *[2] * (half - 2), 3]


def test_a_dream_takes_all_masks_in_its_calls_whatever_it_was_given() -> None:
    for masks in (1, 2, 7, 31, 96):
        for steps in (1, 2, 5, 31, 200):
            for eps in (0.0, 0.001, 0.3, 1.0):
                rule = Timesteps(steps, eps, Measure.ENTROPY)
                assert sum(taken(rule, masks, steps)) == masks
                late = Lane(0, None, Role.GENERATE, 0, masks, masks, steps=steps + 3)
                assert rule.for_lane(late, first=True).sure == masks


def test_an_alg_says_what_confidence_is_and_a_temperature_makes_it_noisy() -> None:
    lane = Lane(0, None, Role.GENERATE, 0, 64, 64, steps=5)
    for alg, measure in [
        ("maskgit_plus", Measure.PROBABILITY),
        ("topk_margin", Measure.MARGIN),
        ("entropy", Measure.ENTROPY),
    ]:
        rule = resolve("dream", {"alg": alg, "alg_temp": 0.5, "steps": 16}, 64).rule
        assert rule.for_lane(lane, True) == DeviceCommitRule(5, math.inf, measure=measure, noise=0.5)
        assert resolve("dream", {"alg": alg, "steps": 16}, 64).rule.for_lane(lane, True).noise == 0


def test_origin_gives_each_mask_the_chance_that_the_timesteps_leave_it() -> None:
    rule = resolve("dream", {"alg": "origin", "steps": 4, "eps": 0.0}, 64).rule
    found = [rule.for_lane(Lane(0, None, Role.GENERATE, 0, 64, 9, call), True) for call in range(4)]
    assert [rule_.sure for rule_ in found] == [0, 0, 0, 9]
    assert {rule_.measure for rule_ in found} == {Measure.RANDOM}
    assert [1 - rule_.threshold for rule_ in found[:3]] == pytest.approx([1 / 4, 1 / 3, 1 / 2])


@pytest.mark.parametrize("name", ["credit", "llada"])
def test_a_decoder_that_takes_no_other_rule_says_so(name: str) -> None:
    with pytest.raises(ParamError, match=f"^decoder {name!r} takes no other rule") as refused:
        resolve(name, {"rule": "klass"}, 64)
    assert refused.value.param == "rule"


def test_later_lanes_may_have_a_stricter_threshold() -> None:
    rule = resolve("asynclane", {"later_threshold": 0.98, "threshold": 0.9}, 64).rule
    lane = Lane(0, None, Role.GENERATE, 0, 32, 32)
    assert rule.for_lane(lane, first=True) == DeviceCommitRule(sure=1, threshold=0.9)
    assert rule.for_lane(lane, first=False) == DeviceCommitRule(sure=0, threshold=0.98)


def test_commit_and_advance_leaves_a_refine_lane_one_call() -> None:
    rule = resolve("asynclane", {"siblings": "commit"}, 64).rule
    assert rule.for_lane(Lane(0, None, Role.REFINE, 0, 9, 5), first=True).sure == 5
    assert rule.for_lane(Lane(1, 0, Role.GENERATE, 9, 41, 30), first=False).sure == 0


def test_only_the_leftmost_lane_is_forced() -> None:
    lane = Lane(0, None, Role.GENERATE, 0, 32, masks=32)
    assert Threshold(0.9).for_lane(lane, first=True) == DeviceCommitRule(sure=1, threshold=0.9)
    assert Threshold(0.9).for_lane(lane, first=False) == DeviceCommitRule(sure=0, threshold=0.9)
    assert Factor(1.0).for_lane(lane, first=False) == DeviceCommitRule(sure=0, threshold=1.0, factor=1.0)


def test_a_parameter_that_several_rules_or_caches_have_takes_the_same_values_in_all() -> None:
    values_of: dict[str, object] = dict(PARAMS)
    policies = (spec.policy for spec in DECODERS.values())
    for row in (*HOST_RULES.values(), *CACHES.values(), *policies):
        for param, values in row.PARAMS.items():
            assert values_of.setdefault(param, values) == values, param


@pytest.mark.parametrize(
    ("name", "params", "param"),
    [
        ("s2d2", {"block_length": 32}, "block_length"),
        ("s2d2", {"routing": "span", "least_score": 1.0}, "least_score"),
        ("s2d2", {"least_span": 3}, "least_span"),
        ("s2d2", {"routing": "bandit", "verify_cost": 1.0}, "verify_cost"),
        ("s2d2", {"cache": "dual"}, "cache"),
        ("asynclane", {"rule": "s2d2"}, "rule"),
        ("dsb", {}, "decoder"),
    ],
)
def test_a_parameter_that_does_not_fit_a_block_causal_network_is_refused(
    name: str, params: dict[str, object], param: str
) -> None:
    with pytest.raises(ParamError) as refused:
        resolve(name, params, 64, AttentionPattern(block_size=16))
    assert refused.value.param == param
    with pytest.raises(ParamError, match="at the one before it"):
        resolve("s2d2", {}, 64, AttentionPattern(logit_shift=1, block_size=16))
