"""Makes of a decoder's name and knobs the objects that decode: `resolve` checks them against the tables.

A request names a row of `methods.DECODERS` and may override its knobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypedDict

from ..contract import Measure
from .attention_pattern import PLAIN, AttentionPattern
from .cache import CACHES, CachePolicy
from .commit import (
    HOST_RULES,
    Applied,
    CommitAtFork,
    CommitRule,
    Factor,
    HostCommitRule,
    HostDecides,
    HostRuleSpec,
    Quota,
    Threshold,
    Timesteps,
)
from .commit.base import EVERYTHING, REPORT_ALL
from .commit.shared.schedule import Schedule
from .compatibility import EXACT_CACHES, check_blocks, fitted
from .lane_tree import Layout
from .lanes import DELIMITERS, TURNS, LanePolicy
from .params import (
    AUTO,
    BLOCK,
    CANVAS,
    OFF,
    PARAMS,
    Choice,
    ParamError,
    Params,
    Values,
    check,
)
from .registry import DECODERS, DecoderSpec


@dataclass(frozen=True, slots=True)
class Decoder:
    """A method with its knobs set, for a canvas of known length."""

    name: str
    policy: LanePolicy
    rule: CommitRule
    host_rule: Callable[[], HostCommitRule] | None  # one for each request, if the host decides what commits
    cache: Callable[[], CachePolicy]
    lookahead: int | None  # positions behind the last lane; None: the whole canvas
    early_stop: bool  # the request ends once everything before its first end token is committed
    whole_blocks: bool = False  # or rather once all of the lane that has that token is
    draft_threshold: float = math.inf  # confidence from which tokens are written ahead of all lanes
    later_threshold: float = 0.0  # confidence that a judge's tokens need in lanes behind the leftmost
    end_threshold: float = math.inf  # confidence from which a proposed end token bounds the look-ahead
    adaptive: bool = False  # blocks are as long as the load allows
    replica_positions: int = 0  # positions behind the canvas that a judge's shadows take, at most
    layout: Layout = Layout.PACKED
    branches: int = 0  # rows beside the request's own, at most, each in a slot of its own
    branch_row: int = 0  # longest one, less what it starts before its lane to begin with a page; at most the request's
    branch_param: str = ""  # what asks for so many
    scored: bool = True  # it can tell how likely a token was in the step that committed it


# Exactly one of these decides which positions commit; naming one replaces the method's own.
RULES: tuple[str, ...] = ("steps", "threshold", "factor")

ALL_PARAMS: Mapping[str, Values] = {
    **PARAMS,
    "cache": Choice(tuple(CACHES)),
    "delimiters": Choice(tuple(DELIMITERS)),
    "turn": Choice(tuple(TURNS)),
    "rule": Choice(tuple(name for name, rule in HOST_RULES.items() if rule.beside is None)),
    **{knob: values for rule in HOST_RULES.values() for knob, values in rule.knobs.items()},
    **{knob: values for cached in CACHES.values() for knob, values in cached.knobs.items()},
}

# What Dream's timesteps ask; other rules do not.
TIMESTEP_PARAMS = ("alg", "alg_temp", "eps")

MEASURES: Mapping[str, Measure] = {
    "origin": Measure.RANDOM,
    "maskgit_plus": Measure.PROBABILITY,
    "topk_margin": Measure.MARGIN,
    "entropy": Measure.ENTROPY,
}

# Caches whose rows have no gaps: drafts are rows like the request's own.
WHOLE_ROWS = ("none", "prefix", "dual", "compact", "finished")

FORECAST_PARAMS = ("horizon", "coverage")

COMPACT_PARAMS = ("refresh_every", "refresh_on", "reuse", "settle")


def defaults_of(name: str, pattern: AttentionPattern = PLAIN) -> Mapping[str, object]:
    """Every knob of a decoder with its default on a network of this geometry; a rule that is not its own is None."""
    method = DECODERS[name]
    return _defaults(method, None if method.rule is None else HOST_RULES[method.rule], pattern)


def resolve(name: str, overrides: Mapping[str, object], length: int, pattern: AttentionPattern = PLAIN) -> Decoder:
    """The decoder `name` with `overrides`, for a canvas of `length` positions and a network of this geometry.

    Raises `ParamError` for an unknown decoder, an unknown knob, a value out of range or knobs that exclude each other.
    """
    if name not in DECODERS:
        raise ParamError("decoder", f"unknown decoder {name!r}; known: {', '.join(DECODERS)}")
    method, rule = DECODERS[name], _rule_named(name, overrides)
    if method.for_blocks and not pattern.block_size:
        raise ParamError("decoder", f"decoder {name!r} is for block-causal models: this one sees the whole canvas")
    knobs = _knobs(name, rule, overrides, pattern)
    _check_together(name, knobs, overrides, length)
    check_blocks(knobs, pattern)
    lookahead = None if knobs.get("lookahead", CANVAS) == CANVAS else knobs.integer("lookahead")
    if pattern.block_size and "lookahead" not in knobs:
        lookahead = 0  # nothing sees it
    cached = str(knobs.get("cache", "none"))
    cache = EXACT_CACHES[cached] if pattern.block_size else CACHES[cached].policy
    later = knobs.get("later_threshold", OFF)
    policy, commits = method.policy(knobs), HostDecides() if rule is not None else _rule(knobs, length)
    judge = _judge(rule, knobs, length) if rule is not None else _applied(commits) if policy.reads_view else None
    judged = None if judge is None else judge()  # says now what it excludes
    if judged is not None:
        _check_judge(name, judged, policy, knobs, pattern)
    return Decoder(
        name=name,
        policy=policy,
        rule=commits if judged is None else HostDecides(replace(REPORT_ALL, measure=judged.measure)),
        host_rule=judge,
        cache=lambda: cache(knobs),
        lookahead=lookahead,
        early_stop=knobs.get("early_stop") is not False,
        whole_blocks=knobs.get("early_stop") == BLOCK,
        draft_threshold=knobs.threshold("draft_threshold"),
        later_threshold=0.0 if later == OFF else knobs.number("later_threshold"),
        end_threshold=knobs.threshold("end_threshold"),
        adaptive=knobs.get("block_length") == AUTO,
        replica_positions=judged.replica_count * min(length, knobs.integer("block_length"))
        if judged and judged.replica_count
        else 0,
        **_branches(knobs, rule, lookahead),
    )


class Branches(TypedDict, total=False):
    """What a decoder says of rows in slots of their own."""

    layout: Layout
    branches: int
    branch_row: int
    branch_param: str
    scored: bool


def _branches(knobs: Params, rule: HostRuleSpec | None, lookahead: int | None) -> Branches:
    if knobs.get("siblings") == "isolated":
        row = knobs.integer("block_length") + (lookahead or 0)
        return Branches(
            layout=Layout.ISOLATED, branches=knobs.integer("max_lanes") - 1, branch_row=row, branch_param="max_lanes"
        )
    if rule is None or rule.beside is None:
        return Branches()
    count, knob, independent, scored = rule.beside
    row = knobs.integer("block_length") if knobs.get("cache") == "dual" else EVERYTHING
    layout = Layout.ENSEMBLE if independent else Layout.DRAFTS
    return Branches(layout=layout, branches=count(knobs), branch_row=row, branch_param=knob, scored=scored)


def suits(name: str, pattern: AttentionPattern) -> bool:
    """Whether a network of this geometry takes the decoder `name` at all."""
    try:
        resolve(name, {}, 1, pattern)
    except ParamError:
        return False
    return True


def _rule_named(name: str, overrides: Mapping[str, object]) -> HostRuleSpec | None:
    """The judge's row, if the method has one or is given one."""
    method = DECODERS[name]
    if method.rule is not None:
        return HOST_RULES[method.rule]
    if "rule" not in method.defaults or "rule" not in overrides:
        return None
    return HOST_RULES[str(check("rule", overrides["rule"], ALL_PARAMS["rule"]))]


def _defaults(method: DecoderSpec, rule: HostRuleSpec | None, pattern: AttentionPattern) -> dict[str, object]:
    own = dict(fitted(method.defaults, pattern))
    if rule is None:
        return {**dict.fromkeys(RULES), **own}
    return {**rule.defaults, **{knob: value for knob, value in own.items() if knob not in RULES}}


def _knobs(name: str, rule: HostRuleSpec | None, overrides: Mapping[str, object], pattern: AttentionPattern) -> Params:
    """All knobs with their values. Raises `ParamError` for one that is not known here, or out of range."""
    defaults = _defaults(DECODERS[name], rule, pattern)
    if "cache" in defaults:
        cache = check("cache", overrides.get("cache", defaults["cache"]), ALL_PARAMS["cache"])
        defaults |= CACHES[str(cache)].defaults
    for knob in overrides:
        if knob not in defaults:
            raise ParamError(knob, f"{_no_knob(name, knob, overrides)}; it has: {', '.join(defaults)}")
    chosen = [knob for knob in RULES if knob in overrides]
    if rule is None and len(chosen) > 1:
        raise ParamError(chosen[1], f"{chosen[0]!r} and {chosen[1]!r} exclude each other: give one")
    kept = {k: v for k, v in defaults.items() if not (rule is None and chosen and k in RULES)}
    return Params({**kept, **{knob: check(knob, value, ALL_PARAMS[knob]) for knob, value in overrides.items()}})


def _no_knob(name: str, knob: str, overrides: Mapping[str, object]) -> str:
    """That a decoder with these overrides does not have `knob`, and which rule or cache has."""
    if knob == "rule":
        return f"decoder {name!r} takes no other rule"
    given = [f"{axis} {overrides[axis]!r}" for axis in ("rule", "cache") if axis in overrides]
    owners = [f"rule {owner!r}" for owner, row in HOST_RULES.items() if knob in row.knobs]
    owners += [f"cache {owner!r}" for owner, row in CACHES.items() if knob in row.knobs]
    of = f"decoder {name!r}" + (f" with {' and '.join(given)}" if given else "")
    return f"{of} has no knob {knob!r}" + (f"; it goes with {' or '.join(owners)}" if owners else "")


def _check_together(name: str, knobs: Params, overrides: Mapping[str, object], length: int) -> None:
    """Raises `ParamError` for knobs that make no sense together."""
    judged = DECODERS[name].rule or knobs.get("rule")
    if judged and HOST_RULES[str(judged)].beside is not None and knobs.get("cache", "none") not in WHOLE_ROWS:
        raise ParamError("cache", f"cache {knobs['cache']!r} leaves gaps in rows: not for decoder {name!r}")
    if judged and knobs.get("siblings") in ("isolated", "commit"):
        raise ParamError(
            "siblings", f"siblings {knobs['siblings']!r} is not for rule {judged!r}: use 'live' or 'coupled'"
        )
    cache, lookahead = knobs.get("cache"), knobs.get("lookahead", CANVAS)
    if cache == "dual" and lookahead != CANVAS:
        raise ParamError("cache", f"cache 'dual' sees the whole canvas: it needs lookahead {CANVAS!r}")
    if cache == "compact" and "refresh_every" not in knobs:
        raise ParamError("cache", f"cache 'compact' is not for decoder {name!r}, which sees the whole canvas")
    for knob in COMPACT_PARAMS:
        if knob in overrides and cache != "compact":
            raise ParamError(knob, f"{knob} is asked by cache 'compact' alone, not by {cache!r}")
    for knob in FORECAST_PARAMS:
        if knobs.get("extrapolate") is False and knobs[knob] != HOST_RULES[str(judged)].defaults[knob]:
            raise ParamError(knob, f"{knob} goes with extrapolate true")
    for knob in TIMESTEP_PARAMS:
        if knob in overrides and (knobs.get("threshold"), knobs.get("factor")) != (None, None):
            raise ParamError(knob, f"{knob} goes with the rule 'steps', not with threshold or factor")
    if knobs.get("alg") == "origin" and overrides.get("alg_temp"):
        raise ParamError("alg_temp", "alg_temp goes with an alg that ranks positions, not with 'origin'")
    if not judged and knobs.get("threshold") is None and overrides.get("later_threshold", OFF) != OFF:
        raise ParamError("later_threshold", "later_threshold goes with the rule 'threshold', not with factor or steps")
    if "lookahead" in overrides and lookahead != CANVAS and knobs.integer("lookahead") > length:
        raise ParamError("lookahead", f"lookahead {lookahead} is larger than the canvas of {length} (max_tokens)")
    if knobs.get("block_length") == AUTO:
        _check_adaptive(name, knobs)
    if knobs.get("siblings") == "isolated" and (cache != "compact" or lookahead == CANVAS):
        raise ParamError("siblings", "isolated siblings need cache 'compact' and a lookahead that is a number")
    if knobs.get("boundary") == "stable" and not knobs["stable_steps"]:
        raise ParamError("stable_steps", "boundary 'stable' needs stable_steps of at least 1")


def _check_judge(
    name: str, judge: HostCommitRule, policy: LanePolicy, knobs: Params, pattern: AttentionPattern
) -> None:
    """Raises `ParamError` for a judge that cannot decide for this decoder's lanes, or this network."""
    rule = DECODERS[name].rule or knobs.get("rule")
    if judge.revises and not policy.serial:
        raise ParamError(
            "rule", f"rule {rule!r} changes what has committed, which lanes of decoder {name!r} build upon"
        )
    if judge.replica_count and not policy.serial:
        raise ParamError("rule", f"rule {rule!r} needs shadows of one lane, where decoder {name!r} has many")
    if judge.replica_count and (pattern.block_size or pattern.logit_shift):
        what = (
            "a token is predicted at the one before it"
            if not pattern.block_size
            else "no position sees behind its block"
        )
        param = "decoder" if DECODERS[name].rule else "rule"
        raise ParamError(param, f"{param} {rule!r} needs shadows that this model cannot have: {what}")


def _check_adaptive(name: str, knobs: Params) -> None:
    if name != "asynclane":
        raise ParamError("block_length", f"block_length {AUTO!r} is for decoder 'asynclane', not for {name!r}")
    if knobs.get("steps") is not None or knobs["siblings"] == "isolated":
        raise ParamError("block_length", f"block_length {AUTO!r} excludes steps and isolated siblings")


def _judge(rule: HostRuleSpec, knobs: Params, length: int) -> Callable[[], HostCommitRule]:
    return lambda: rule.judge(knobs, length)


def _applied(rule: CommitRule) -> Callable[[], HostCommitRule]:
    return lambda: Applied(rule)


def _rule(knobs: Params, length: int) -> CommitRule:
    rule = _plain_rule(knobs, length)
    return CommitAtFork(rule) if knobs.get("siblings") == "commit" else rule


def _plain_rule(knobs: Params, length: int) -> CommitRule:
    if knobs.get("threshold") is not None:
        later = 0.0 if knobs.get("later_threshold", OFF) == OFF else knobs.number("later_threshold")
        return Threshold(knobs.number("threshold"), later)
    if knobs.get("factor") is not None:
        return Factor(knobs.number("factor"))
    if "alg" in knobs:
        calls = length if knobs["steps"] is None else knobs.integer("steps")
        if calls > length:
            raise ParamError("steps", f"steps {calls} exceed the canvas of {length} (max_tokens): calls would be empty")
        measure = MEASURES[knobs.text("alg")]
        return Timesteps(calls, knobs.number("eps"), measure, knobs.number("alg_temp"))
    return Quota(Schedule.of(knobs, length).calls)
