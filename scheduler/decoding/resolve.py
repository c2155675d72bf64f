"""Makes a decoder of a name and parameters, which it checks against the tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from types import MappingProxyType

import numpy as np

from ..contract import Measure
from .attention_pattern import PLAIN, AttentionPattern
from .cache import CACHES, Focus
from .commit import HOST_RULES
from .commit.base import EVERYTHING, REPORT_ALL, CommitRule, HostCommitRule, HostDecides
from .commit.device import CommitAtFork, EntropyBound, Factor, Quota, Threshold, Timesteps
from .commit.host.applied import Applied
from .commit.shared.schedule import Schedule
from .compatibility import EXACT_CACHES, DecoderFacts, VocabularyFacts, fitted, refuse
from .denoising import Denoiser
from .lane_tree import Layout
from .params import AUTO, BLOCK, CANVAS, OFF, Choice, ParamError, Params, check, nearest
from .plugins import ALL_DECODERS, ALL_PARAMS, ALL_RULES
from .registry import Decoder, DecoderSpec
from .vocabulary import Vocabulary

# Exactly one of these decides which positions commit; naming one replaces the decoder's own.
RULES: tuple[str, ...] = ("steps", "threshold", "factor", "entropy_bound")

MEASURES: Mapping[str, Measure] = {
    "origin": Measure.RANDOM,
    "maskgit_plus": Measure.PROBABILITY,
    "topk_margin": Measure.MARGIN,
    "entropy": Measure.ENTROPY,
}


RuleMaker = Callable[[Params, int], HostCommitRule]  # of checked parameters and the length of a canvas
AS_LISTED: Mapping[str, RuleMaker] = MappingProxyType({})


def defaults_of(name: str, pattern: AttentionPattern = PLAIN) -> Mapping[str, object]:
    """Every parameter of a decoder with its default on a network of this pattern; a rule that is not its own is
    None."""
    spec = ALL_DECODERS[name]
    return _defaults(spec, None if spec.rule is None else ALL_RULES[spec.rule], pattern)


def unknown_decoder(name: str) -> str:
    """Say that there is no decoder `name`, and which one may be meant; of a commit rule, which decoders have it."""
    if name not in ALL_RULES:
        nearest = get_close_matches(name.lower(), [*ALL_DECODERS, *ALL_RULES], 1)
        meant = f": did you mean {nearest[0]!r}?" if nearest else ";"
        return f"unknown decoder {name!r}{meant} known: {', '.join(ALL_DECODERS)}"
    found = {
        "have it": [each for each, spec in ALL_DECODERS.items() if spec.rule == name],
        "take it by `rule`": [each for each in ALL_DECODERS if suits(each, PLAIN, {"rule": name})],
    }
    listed = [f"{verb}: {', '.join(names)}" for verb, names in found.items() if names]
    return f"{name!r} is a commit rule, not a decoder; decoders that {'; that '.join(listed)}"


def resolve(
    name: str,
    overrides: Mapping[str, object],
    length: int,
    pattern: AttentionPattern = PLAIN,
    makers: Mapping[str, RuleMaker] = AS_LISTED,
) -> Decoder:
    """The decoder `name` with `overrides`, for a canvas of `length` positions and a network of this pattern. A rule
    that is among the `makers` is made by that one, as for a learnt rule with weights of its own.

    Raises `ParamError` for an unknown decoder, an unknown parameter, a value out of range, or a combination that
    `compatibility` refuses.
    """
    if name not in ALL_DECODERS:
        raise ParamError("decoder", unknown_decoder(name))
    spec, rule = ALL_DECODERS[name], _rule_named(name, overrides, pattern)
    params = _params(name, rule, overrides, pattern)
    facts = DecoderFacts(name, spec, rule, params, overrides, length, pattern)
    refuse(facts)
    lookahead = None if params.get("lookahead", CANVAS) == CANVAS else params.integer("lookahead")
    if pattern.block_size and "lookahead" not in params:
        lookahead = 0  # no position sees it
    cached = "prefix" if spec.own_pattern else str(params.get("cache", "none"))
    cache = EXACT_CACHES[cached] if pattern.block_size else CACHES[cached]
    ruled = Params({**params, **spec.fixed})
    policy = spec.policy.of(ruled)
    on_device = rule is None and not spec.denoises
    device_rule: CommitRule = _device_rule(ruled, length, spec.strict) if on_device else HostDecides()

    def host_rule() -> HostCommitRule:
        return Applied(device_rule) if rule is None else _made(rule, facts.rule_param, params, length, makers)

    on_host = rule is not None or policy.reads_view or CACHES[cached].reads_entropy
    checks = rule is not None and rule.layout is Layout.VERIFIED
    replicas = 1 if checks else 0 if rule is None else rule.replica_count
    isolated = params.get("siblings") == "isolated"
    branch_param = "max_lanes" if isolated else "" if rule is None else rule.rows_param
    branch_lookahead = 0
    if isolated:
        branch_lookahead = params.integer("refine_lookahead") if "refine_lookahead" in params else lookahead or 0
    return Decoder(
        name=name,
        policy=policy,
        rule=HostDecides(replace(REPORT_ALL, measure=host_rule().measure)) if on_host else device_rule,
        host_rule=host_rule if on_host else None,
        cache=lambda: cache(ruled),
        lookahead=lookahead,
        early_stop=params.get("early_stop") is not False,
        whole_blocks=params.get("early_stop") == BLOCK,
        draft_threshold=params.threshold("draft_threshold"),
        later_threshold=_later_threshold(params),
        end_threshold=params.threshold("end_threshold"),
        stop_threshold=_stop_threshold(params),
        stop_given="stop_threshold" in overrides and overrides["stop_threshold"] != OFF,
        adaptive=params.get("block_length") == AUTO,
        revises=rule is not None and rule.revises,
        replica_positions=replicas and replicas * min(length, params.integer("block_length")),
        layout=Layout.ISOLATED if isolated else Layout.PACKED if rule is None else rule.layout,
        branches=params.integer(branch_param) - 1 if branch_param else 0,
        branch_row=_branch_row(params, isolated, policy.slides) + branch_lookahead if branch_param else 0,
        branch_param=branch_param,
        shares_prompt=params.get("share_prompt") is True,
        branch_lookahead=branch_lookahead,
        scored=rule is None or rule.scored,
        grows=rule is not None and rule.grows,
        weighs_tokens=facts.rule_param if rule is not None and rule.weighs_tokens else "",
        denoiser=_denoiser(params) if spec.denoises else None,
        selects=cached == Focus.NAME,
    )


def _denoiser(params: Params) -> Denoiser:
    return Denoiser(
        steps=params.integer("max_denoising_steps"),
        entropy_bound=params.number("entropy_bound"),
        t_min=params.number("t_min"),
        t_max=params.number("t_max"),
        stability=params.integer("stability_threshold"),
        confidence=params.number("confidence_threshold"),
    )


def _made(
    rule: type[HostCommitRule], param: str, params: Params, length: int, makers: Mapping[str, RuleMaker]
) -> HostCommitRule:
    """The rule of a request. A plug-in's may raise: `ParamError` is its refusal."""
    if rule.NAME in HOST_RULES:
        return makers.get(rule.NAME, rule)(params, length)
    try:
        return rule(params, length)
    except ParamError:
        raise
    except Exception as error:
        raise ParamError(param, f"rule {rule.NAME!r} fails with these parameters: {error!r}") from error


def _branch_row(params: Params, isolated: bool, slides: bool) -> int:
    if slides or (not isolated and params.get("cache") != "dual"):
        return EVERYTHING
    return params.integer("block_length")


def suits(
    name: str,
    pattern: AttentionPattern,
    overrides: Mapping[str, object] = MappingProxyType({}),
    vocabulary: Vocabulary | None = None,
) -> bool:
    """True if a network of this pattern, with this vocabulary, takes the decoder `name` at all, with `overrides`."""
    try:
        decoder = resolve(name, overrides, 1, pattern)
        if vocabulary is not None:
            refuse(VocabularyFacts(decoder, vocabulary))
    except ParamError:
        return False
    return True


def _rule_named(name: str, overrides: Mapping[str, object], pattern: AttentionPattern) -> type[HostCommitRule] | None:
    """The host rule that a decoder has or is given. Raises `ParamError` for an unknown one, with those that the decoder
    takes."""
    spec = ALL_DECODERS[name]
    if spec.rule is not None:
        return ALL_RULES[spec.rule]
    if "rule" not in spec.defaults or "rule" not in overrides:
        return None
    rule, known = overrides["rule"], ALL_PARAMS["rule"]
    assert isinstance(known, Choice)
    if rule not in known.values:
        taken = tuple(each for each in known.values if suits(name, pattern, {"rule": each}))
        check("rule", rule, Choice(taken or known.values))  # none where the decoder itself does not suit the network
    return ALL_RULES[str(rule)]


def _defaults(spec: DecoderSpec, rule: type[HostCommitRule] | None, pattern: AttentionPattern) -> dict[str, object]:
    own = dict(fitted(spec.defaults, pattern))
    if spec.own_pattern:
        return own
    if rule is None:
        return {**dict.fromkeys(RULES), **own}
    return {**rule.DEFAULTS, **{name: value for name, value in own.items() if name not in RULES}}


def _params(
    name: str, rule: type[HostCommitRule] | None, overrides: Mapping[str, object], pattern: AttentionPattern
) -> Params:
    """All parameters with their values. Raises `ParamError` for one that is unknown here, or out of range."""
    defaults = _defaults(ALL_DECODERS[name], rule, pattern)
    if "cache" in defaults:
        cache = check("cache", overrides.get("cache", defaults["cache"]), ALL_PARAMS["cache"])
        defaults |= CACHES[str(cache)].DEFAULTS
    for param, value in pattern.sampler:  # of a checkpoint's file
        if param in defaults:
            check(param, value, ALL_PARAMS[param])
    for param in overrides:
        if param not in defaults:
            meant = None if param in ALL_PARAMS else nearest(param, defaults)
            hint = f": did you mean {meant!r}?" if meant else f"; it has: {', '.join(defaults)}"
            raise ParamError(param, _no_param(name, param, overrides) + hint)
    chosen = [rule_name for rule_name in RULES if rule_name in overrides]
    if rule is None and len(chosen) > 1:
        raise ParamError(chosen[1], f"{chosen[0]!r} and {chosen[1]!r} exclude each other: give one")
    kept = {key: value for key, value in defaults.items() if not (rule is None and chosen and key in RULES)}
    return Params({**kept, **{key: check(key, value, ALL_PARAMS[key]) for key, value in overrides.items()}})


def _no_param(name: str, param: str, overrides: Mapping[str, object]) -> str:
    """Say that a decoder with these overrides does not have `param`, and which rule or cache has."""
    if param == "rule":
        return f"decoder {name!r} takes no other rule"
    given = [f"{axis} {overrides[axis]!r}" for axis in ("rule", "cache") if axis in overrides]
    owners = [f"rule {owner!r}" for owner, rule in ALL_RULES.items() if param in rule.PARAMS]
    owners += [f"cache {owner!r}" for owner, cache in CACHES.items() if param in cache.PARAMS]
    subject = f"decoder {name!r}" + (f" with {' and '.join(given)}" if given else "")
    return f"{subject} has no parameter {param!r}" + (f"; it goes with {' or '.join(owners)}" if owners else "")


def _later_threshold(params: Params) -> float:
    return 0.0 if params.get("later_threshold", OFF) == OFF else params.number("later_threshold")


def _stop_threshold(params: Params) -> float:
    """The confidence from which an end ends an answer: none is looked for below `end_threshold`, or ends it without
    `early_stop`."""
    if params.get("early_stop") is not True:
        return math.inf
    return max(params.threshold("stop_threshold"), params.threshold("end_threshold"))


def _device_rule(params: Params, length: int, strict: bool) -> CommitRule:
    rule = _plain_rule(params, length, strict)
    return CommitAtFork(rule) if params.get("siblings") == "commit" else rule


def _plain_rule(params: Params, length: int, strict: bool) -> CommitRule:
    if params.get("threshold") is not None:
        threshold = params.number("threshold")
        if strict:  # the device compares in float32
            threshold = float(np.nextafter(np.float32(threshold), np.float32(2)))
        return Threshold(threshold, _later_threshold(params))
    if params.get("factor") is not None:
        return Factor(params.number("factor"))
    if params.get("entropy_bound") is not None:
        return EntropyBound(params.number("entropy_bound"), params.get("bound_on") == "all")
    if "alg" in params:
        forwards = length if params["steps"] is None else params.integer("steps")
        return Timesteps(forwards, params.number("eps"), MEASURES[params.text("alg")], params.number("alg_temp"))
    return Quota(Schedule.of(params, length).forwards)
