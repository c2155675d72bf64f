"""Makes of a decoder's name and knobs the objects that decode: `resolve` checks them against the tables.

A request names a row of `methods.METHODS` and may override its knobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict

from ..contract import Measure
from ..layout.drafts import Independent, Speculating
from ..layout.packed import Holding, Isolated, Layout, Together
from .attention_pattern import PLAIN, Geometry
from .cache import CACHES, CachePolicy
from .commit import (
    JUDGES,
    Applied,
    CommitAtFork,
    CommitRule,
    Factor,
    Judge,
    Judged,
    Quota,
    Rule,
    Threshold,
    Timesteps,
)
from .commit.base import EVERYTHING, TELL
from .commit.shared.schedule import Schedule
from .compatibility import EXACT_CACHES, check_blocks, fitted
from .lanes import DELIMITERS, TURNS, LanePolicy
from .params import (
    AUTO,
    BLOCK,
    CANVAS,
    KNOBS,
    OFF,
    Choice,
    KnobError,
    Knobs,
    Values,
    check,
)
from .registry import METHODS, Method

if TYPE_CHECKING:
    from ..sequence import Sequence


@dataclass(frozen=True, slots=True)
class Decoder:
    """A method with its knobs set, for a canvas of known length."""

    name: str
    policy: LanePolicy
    rule: CommitRule
    judge: Callable[[], Judge] | None  # one for each request, if the host decides what commits
    cache: Callable[[], CachePolicy]
    lookahead: int | None  # positions behind the last lane; None: the whole canvas
    early_stop: bool  # the request ends once everything before its first end token is committed
    whole_blocks: bool = False  # or rather once all of the lane that has that token is
    draft_threshold: float = math.inf  # confidence from which tokens are written ahead of all lanes
    later_threshold: float = 0.0  # confidence that a judge's tokens need in lanes behind the leftmost
    end_threshold: float = math.inf  # confidence from which a proposed end token bounds the look-ahead
    adaptive: bool = False  # blocks are as long as the load allows
    shadows: int = 0  # positions behind the canvas that a judge's shadows take, at most
    layout: Callable[[Holding, Sequence, int], Layout] = Together
    branches: int = 0  # rows beside the request's own, at most, each in a slot of its own
    branch_row: int = 0  # longest one, less what it starts before its lane to begin with a page; at most the request's
    branch_knob: str = ""  # what asks for so many
    scored: bool = True  # it can tell how likely a token was in the step that committed it


# Exactly one of these decides which positions commit; naming one replaces the method's own.
RULES: tuple[str, ...] = ("steps", "threshold", "factor")

ALL_KNOBS: Mapping[str, Values] = {
    **KNOBS,
    "cache": Choice(tuple(CACHES)),
    "delimiters": Choice(tuple(DELIMITERS)),
    "turn": Choice(tuple(TURNS)),
    "rule": Choice(tuple(name for name, rule in JUDGES.items() if rule.beside is None)),
    **{knob: values for rule in JUDGES.values() for knob, values in rule.knobs.items()},
    **{knob: values for cached in CACHES.values() for knob, values in cached.knobs.items()},
}

# What Dream's timesteps ask; other rules do not.
TIMESTEP_KNOBS = ("alg", "alg_temp", "eps")

MEASURES: Mapping[str, Measure] = {
    "origin": Measure.RANDOM,
    "maskgit_plus": Measure.PROBABILITY,
    "topk_margin": Measure.MARGIN,
    "entropy": Measure.ENTROPY,
}

# Caches whose rows have no gaps: drafts are rows like the request's own.
WHOLE_ROWS = ("none", "prefix", "dual", "compact", "finished")

FORECAST_KNOBS = ("horizon", "coverage")

COMPACT_KNOBS = ("refresh_every", "refresh_on", "reuse", "settle")


def defaults_of(name: str, geometry: Geometry = PLAIN) -> Mapping[str, object]:
    """Every knob of a decoder with its default on a network of this geometry; a rule that is not its own is None."""
    method = METHODS[name]
    return _defaults(method, None if method.rule is None else JUDGES[method.rule], geometry)


def resolve(name: str, overrides: Mapping[str, object], length: int, geometry: Geometry = PLAIN) -> Decoder:
    """The decoder `name` with `overrides`, for a canvas of `length` positions and a network of this geometry.

    Raises `KnobError` for an unknown decoder, an unknown knob, a value out of range or knobs that exclude each other.
    """
    if name not in METHODS:
        raise KnobError("decoder", f"unknown decoder {name!r}; known: {', '.join(METHODS)}")
    method, rule = METHODS[name], _rule_named(name, overrides)
    if method.for_blocks and not geometry.block:
        raise KnobError("decoder", f"decoder {name!r} is for block-causal models: this one sees the whole canvas")
    knobs = _knobs(name, rule, overrides, geometry)
    _check_together(name, knobs, overrides, length)
    check_blocks(knobs, geometry)
    lookahead = None if knobs.get("lookahead", CANVAS) == CANVAS else knobs.integer("lookahead")
    if geometry.block and "lookahead" not in knobs:
        lookahead = 0  # nothing sees it
    cached = str(knobs.get("cache", "none"))
    cache = EXACT_CACHES[cached] if geometry.block else CACHES[cached].policy
    later = knobs.get("later_threshold", OFF)
    policy, commits = method.policy(knobs), Judged() if rule is not None else _rule(knobs, length)
    judge = _judge(rule, knobs, length) if rule is not None else _applied(commits) if policy.looks else None
    judged = None if judge is None else judge()  # says now what it excludes
    if judged is not None:
        _check_judge(name, judged, policy, knobs, geometry)
    return Decoder(
        name=name,
        policy=policy,
        rule=commits if judged is None else Judged(replace(TELL, measure=judged.measure)),
        judge=judge,
        cache=lambda: cache(knobs),
        lookahead=lookahead,
        early_stop=knobs.get("early_stop") is not False,
        whole_blocks=knobs.get("early_stop") == BLOCK,
        draft_threshold=knobs.threshold("draft_threshold"),
        later_threshold=0.0 if later == OFF else knobs.number("later_threshold"),
        end_threshold=knobs.threshold("end_threshold"),
        adaptive=knobs.get("block_length") == AUTO,
        shadows=judged.copies * min(length, knobs.integer("block_length")) if judged and judged.copies else 0,
        **_branches(knobs, rule, lookahead),
    )


class Branches(TypedDict, total=False):
    """What a decoder says of rows in slots of their own."""

    layout: Callable[[Holding, Sequence, int], Layout]
    branches: int
    branch_row: int
    branch_knob: str
    scored: bool


def _branches(knobs: Knobs, rule: Rule | None, lookahead: int | None) -> Branches:
    if knobs.get("siblings") == "isolated":
        row = knobs.integer("block_length") + (lookahead or 0)
        return Branches(
            layout=Isolated, branches=knobs.integer("max_lanes") - 1, branch_row=row, branch_knob="max_lanes"
        )
    if rule is None or rule.beside is None:
        return Branches()
    count, knob, independent, scored = rule.beside
    row = knobs.integer("block_length") if knobs.get("cache") == "dual" else EVERYTHING
    layout = Independent if independent else Speculating
    return Branches(layout=layout, branches=count(knobs), branch_row=row, branch_knob=knob, scored=scored)


def suits(name: str, geometry: Geometry) -> bool:
    """Whether a network of this geometry takes the decoder `name` at all."""
    try:
        resolve(name, {}, 1, geometry)
    except KnobError:
        return False
    return True


def _rule_named(name: str, overrides: Mapping[str, object]) -> Rule | None:
    """The judge's row, if the method has one or is given one."""
    method = METHODS[name]
    if method.rule is not None:
        return JUDGES[method.rule]
    if "rule" not in method.defaults or "rule" not in overrides:
        return None
    return JUDGES[str(check("rule", overrides["rule"], ALL_KNOBS["rule"]))]


def _defaults(method: Method, rule: Rule | None, geometry: Geometry) -> dict[str, object]:
    own = dict(fitted(method.defaults, geometry))
    if rule is None:
        return {**dict.fromkeys(RULES), **own}
    return {**rule.defaults, **{knob: value for knob, value in own.items() if knob not in RULES}}


def _knobs(name: str, rule: Rule | None, overrides: Mapping[str, object], geometry: Geometry) -> Knobs:
    """All knobs with their values. Raises `KnobError` for one that is not known here, or out of range."""
    defaults = _defaults(METHODS[name], rule, geometry)
    if "cache" in defaults:
        cache = check("cache", overrides.get("cache", defaults["cache"]), ALL_KNOBS["cache"])
        defaults |= CACHES[str(cache)].defaults
    for knob in overrides:
        if knob not in defaults:
            raise KnobError(knob, f"{_no_knob(name, knob, overrides)}; it has: {', '.join(defaults)}")
    chosen = [knob for knob in RULES if knob in overrides]
    if rule is None and len(chosen) > 1:
        raise KnobError(chosen[1], f"{chosen[0]!r} and {chosen[1]!r} exclude each other: give one")
    kept = {k: v for k, v in defaults.items() if not (rule is None and chosen and k in RULES)}
    return Knobs({**kept, **{knob: check(knob, value, ALL_KNOBS[knob]) for knob, value in overrides.items()}})


def _no_knob(name: str, knob: str, overrides: Mapping[str, object]) -> str:
    """That a decoder with these overrides does not have `knob`, and which rule or cache has."""
    if knob == "rule":
        return f"decoder {name!r} takes no other rule"
    given = [f"{axis} {overrides[axis]!r}" for axis in ("rule", "cache") if axis in overrides]
    owners = [f"rule {owner!r}" for owner, row in JUDGES.items() if knob in row.knobs]
    owners += [f"cache {owner!r}" for owner, row in CACHES.items() if knob in row.knobs]
    of = f"decoder {name!r}" + (f" with {' and '.join(given)}" if given else "")
    return f"{of} has no knob {knob!r}" + (f"; it goes with {' or '.join(owners)}" if owners else "")


def _check_together(name: str, knobs: Knobs, overrides: Mapping[str, object], length: int) -> None:
    """Raises `KnobError` for knobs that make no sense together."""
    judged = METHODS[name].rule or knobs.get("rule")
    if judged and JUDGES[str(judged)].beside is not None and knobs.get("cache", "none") not in WHOLE_ROWS:
        raise KnobError("cache", f"cache {knobs['cache']!r} leaves gaps in rows: not for decoder {name!r}")
    if judged and knobs.get("siblings") in ("isolated", "commit"):
        raise KnobError(
            "siblings", f"siblings {knobs['siblings']!r} is not for rule {judged!r}: use 'live' or 'coupled'"
        )
    cache, lookahead = knobs.get("cache"), knobs.get("lookahead", CANVAS)
    if cache == "dual" and lookahead != CANVAS:
        raise KnobError("cache", f"cache 'dual' sees the whole canvas: it needs lookahead {CANVAS!r}")
    if cache == "compact" and "refresh_every" not in knobs:
        raise KnobError("cache", f"cache 'compact' is not for decoder {name!r}, which sees the whole canvas")
    for knob in COMPACT_KNOBS:
        if knob in overrides and cache != "compact":
            raise KnobError(knob, f"{knob} is asked by cache 'compact' alone, not by {cache!r}")
    for knob in FORECAST_KNOBS:
        if knobs.get("extrapolate") is False and knobs[knob] != JUDGES[str(judged)].defaults[knob]:
            raise KnobError(knob, f"{knob} goes with extrapolate true")
    for knob in TIMESTEP_KNOBS:
        if knob in overrides and (knobs.get("threshold"), knobs.get("factor")) != (None, None):
            raise KnobError(knob, f"{knob} goes with the rule 'steps', not with threshold or factor")
    if knobs.get("alg") == "origin" and overrides.get("alg_temp"):
        raise KnobError("alg_temp", "alg_temp goes with an alg that ranks positions, not with 'origin'")
    if not judged and knobs.get("threshold") is None and overrides.get("later_threshold", OFF) != OFF:
        raise KnobError("later_threshold", "later_threshold goes with the rule 'threshold', not with factor or steps")
    if "lookahead" in overrides and lookahead != CANVAS and knobs.integer("lookahead") > length:
        raise KnobError("lookahead", f"lookahead {lookahead} is larger than the canvas of {length} (max_tokens)")
    if knobs.get("block_length") == AUTO:
        _check_adaptive(name, knobs)
    if knobs.get("siblings") == "isolated" and (cache != "compact" or lookahead == CANVAS):
        raise KnobError("siblings", "isolated siblings need cache 'compact' and a lookahead that is a number")
    if knobs.get("boundary") == "stable" and not knobs["stable_steps"]:
        raise KnobError("stable_steps", "boundary 'stable' needs stable_steps of at least 1")


def _check_judge(name: str, judge: Judge, policy: LanePolicy, knobs: Knobs, geometry: Geometry) -> None:
    """Raises `KnobError` for a judge that cannot decide for this decoder's lanes, or this network."""
    rule = METHODS[name].rule or knobs.get("rule")
    if judge.revises and not policy.serial:
        raise KnobError("rule", f"rule {rule!r} changes what has committed, which lanes of decoder {name!r} build upon")
    if judge.copies and not policy.serial:
        raise KnobError("rule", f"rule {rule!r} needs shadows of one lane, where decoder {name!r} has many")
    if judge.copies and (geometry.block or geometry.shift):
        what = "no position sees behind its block" if geometry.block else "a token is predicted at the one before it"
        param = "decoder" if METHODS[name].rule else "rule"
        raise KnobError(param, f"{param} {rule!r} needs shadows that this model cannot have: {what}")


def _check_adaptive(name: str, knobs: Knobs) -> None:
    if name != "asynclane":
        raise KnobError("block_length", f"block_length {AUTO!r} is for decoder 'asynclane', not for {name!r}")
    if knobs.get("steps") is not None or knobs["siblings"] == "isolated":
        raise KnobError("block_length", f"block_length {AUTO!r} excludes steps and isolated siblings")


def _judge(rule: Rule, knobs: Knobs, length: int) -> Callable[[], Judge]:
    return lambda: rule.judge(knobs, length)


def _applied(rule: CommitRule) -> Callable[[], Judge]:
    return lambda: Applied(rule)


def _rule(knobs: Knobs, length: int) -> CommitRule:
    rule = _plain_rule(knobs, length)
    return CommitAtFork(rule) if knobs.get("siblings") == "commit" else rule


def _plain_rule(knobs: Knobs, length: int) -> CommitRule:
    if knobs.get("threshold") is not None:
        later = 0.0 if knobs.get("later_threshold", OFF) == OFF else knobs.number("later_threshold")
        return Threshold(knobs.number("threshold"), later)
    if knobs.get("factor") is not None:
        return Factor(knobs.number("factor"))
    if "alg" in knobs:
        calls = length if knobs["steps"] is None else knobs.integer("steps")
        if calls > length:
            raise KnobError("steps", f"steps {calls} exceed the canvas of {length} (max_tokens): calls would be empty")
        measure = MEASURES[knobs.text("alg")]
        return Timesteps(calls, knobs.number("eps"), measure, knobs.number("alg_temp"))
    return Quota(Schedule.of(knobs, length).calls)
