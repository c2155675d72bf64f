"""All combinations that are refused, in one table, and the defaults that a network changes.

A row has a message, the parameter to name and a condition; the first row that holds is raised as a `ParamError`. Rows
read plain facts: of a decoder on a network when it is resolved (`DecoderFacts`), with a vocabulary (`VocabularyFacts`),
and of a request when it is queued (`RequestFacts`).

In a block-causal network keys and values of a block are exact once all its tokens were final when they were computed,
since nothing after the block is seen. So `prefix` and `compact` are one cache, which never refreshes, and a serial
decoder has to compute only the block. `fast-dllm` is then what SDAR and LLaDA2 publish as their own sampler: blocks in
order, and in each step every position above the threshold, or else the best one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from .attention_pattern import AttentionPattern
from .cache import Block, CachePolicy, Compact, Focus, NoCache
from .commit.base import HostCommitRule
from .lane_tree import Layout
from .lanes.blockwise import Blockwise
from .params import AUTO, CANVAS, OFF, ParamError, Params, doublings
from .registry import Decoder, DecoderSpec
from .vocabulary import Vocabulary

Facts = TypeVar("Facts")

# By message: the parameter to name, and the condition. Message and parameter are format strings of the facts `f`.
Refusals: TypeAlias = Mapping[str, tuple[str, Callable[[Facts], object]]]

# Pairs of parameters of which the first must not exceed the second.
BOUNDS = (("t_min", "t_max"), ("lower_threshold", "upper_threshold"))


@dataclass(frozen=True, slots=True)
class DecoderFacts:
    """A decoder with checked parameters, a canvas of `length` positions and a network."""

    name: str
    spec: DecoderSpec
    rule: type[HostCommitRule] | None
    params: Params
    overrides: Mapping[str, object]
    length: int
    pattern: AttentionPattern

    @property
    def cache(self) -> object:
        return self.params.get("cache", "none")

    @property
    def lookahead(self) -> object:
        return self.params.get("lookahead", CANVAS)

    @property
    def block_param(self) -> str:
        return "sub_block_length" if "sub_block_length" in self.params else "block_length"

    @property
    def block(self) -> int:
        """Positions of a block."""
        return self.params.block_of(self.length)

    @property
    def blocks(self) -> int:
        return -(-self.length // self.block)

    @property
    def forwards(self) -> int:
        """Forwards of a canvas that ASS fills."""
        return max(1, doublings(self.length))

    @property
    def cache_param(self) -> str:
        """The parameter that gave the cache."""
        return "cache" if "cache" in self.overrides else "decoder"

    @property
    def rule_param(self) -> str:
        """The parameter that selects its host rule."""
        return "rule" if self.spec.rule is None else "decoder"

    @property
    def rule_given(self) -> str:
        """That parameter and its value, as a request names its host rule."""
        return f"decoder {self.name!r}" if self.rule is None or self.spec.rule else f"rule {self.rule.NAME!r}"

    @property
    def checks(self) -> bool:
        """True if its host rule checks drafts."""
        return self.rule is not None and self.rule.layout is Layout.VERIFIED

    @property
    def drafts(self) -> bool:
        """True if its host rule checks what another network drafts."""
        return self.rule is not None and self.rule.layout is Layout.DRAFTER

    @property
    def bound_given(self) -> Mapping[str, str]:
        """The parameter to name of each pair of bounds: the lower one, unless only the upper one is given."""
        return {low: high if high in self.overrides and low not in self.overrides else low for low, high in BOUNDS}

    def is_(self, **values: object) -> bool:
        """True if these parameters have these values."""
        return all(self.params.get(name) == value for name, value in values.items())

    def is_not_default(self, name: str) -> bool:
        """True if a parameter has another value than its host rule's default."""
        return self.rule is not None and self.params[name] != self.rule.DEFAULTS[name]

    def number(self, name: str) -> float:
        """A parameter's number, 0 if it has none: it is absent, None or a word."""
        value = self.params.get(name)
        return value if isinstance(value, int | float) else 0


def _given(param: str, when: Callable[[DecoderFacts], object]) -> Callable[[DecoderFacts], object]:
    return lambda f: param in f.overrides and when(f)


def _stopping(when: Callable[[DecoderFacts], object]) -> Callable[[DecoderFacts], object]:
    """A refusal of a stop_threshold that was given. The default gives way by itself."""
    return _given("stop_threshold", lambda f: f.params["stop_threshold"] != OFF and when(f))


def _unextrapolated(param: str) -> Callable[[DecoderFacts], object]:
    return lambda f: f.rule and f.is_(extrapolate=False) and f.params[param] != f.rule.DEFAULTS[param]


def _routed_otherwise(param: str, routings: tuple[str, ...]) -> Callable[[DecoderFacts], object]:
    return lambda f: (
        f.rule and f.checks and f.params["routing"] not in routings and f.params[param] != f.rule.DEFAULTS[param]
    )


def _exact(when: Callable[[DecoderFacts], object]) -> Callable[[DecoderFacts], object]:
    return lambda f: f.pattern.block_size and when(f)


def _in_blocks(when: Callable[[DecoderFacts], object]) -> Callable[[DecoderFacts], object]:
    return lambda f: f.pattern.bounded and when(f)


def _known_first(when: Callable[[DecoderFacts], object]) -> Callable[[DecoderFacts], object]:
    return lambda f: f.pattern.known_first and when(f)


WHOLE_ROWS = ("none", "prefix", "dual", "compact", "dsb", "finished")  # caches whose rows have no gaps

# Parameters of rules that check drafts, and the routings that read them.
ROUTED: Mapping[str, tuple[str, ...]] = {
    "least_score": ("score",),
    "least_span": ("span",),
    "score_on": ("hysteresis",),
    "score_off": ("hysteresis",),
    "exploration": ("bandit",),
    "verify_cost": ("score", "hysteresis"),
    "cost_by": ("score", "hysteresis"),
}

DECODER_REFUSALS: Refusals[DecoderFacts] = {
    "decoder {f.name!r} denoises random tokens: this model's canvases begin with masks": (
        "decoder",
        lambda f: f.spec.denoises and not f.pattern.canvas_length,
    ),
    "decoder {f.name!r} fills masks: this model's canvases begin with random tokens, use 'renoise'": (
        "decoder",
        lambda f: f.pattern.canvas_length and not f.spec.denoises,
    ),
    "decoder {f.name!r} is for models that predict the next token: this one fills masks": (
        "decoder",
        lambda f: f.spec.autoregressive and not f.pattern.autoregressive,
    ),
    "decoder {f.name!r} fills masks: this model predicts the next token alone, use 'autoregressive'": (
        "decoder",
        lambda f: f.pattern.autoregressive and not f.spec.autoregressive,
    ),
    "decoder {f.name!r} needs a network that drafts: start the server with --drafter": (
        "decoder",
        lambda f: f.drafts and f.pattern.drafter is None,
    ),
    "t_min {f.params[t_min]} must not exceed t_max {f.params[t_max]}": (
        "{f.bound_given[t_min]}",
        lambda f: f.spec.denoises and f.number("t_min") > f.number("t_max"),
    ),
    "decoder {f.name!r} is for block-causal models: this one reads known tokens first": (
        "decoder",
        lambda f: f.spec.for_blocks and f.pattern.known_first,
    ),
    "decoder {f.name!r} is for block-causal models: this one sees the whole canvas": (
        "decoder",
        lambda f: f.spec.for_blocks and not f.pattern.bounded,
    ),
    "decoder {f.name!r} is for models that read known tokens first, as WeDLM does: use 'asynclane' or 'fast-dllm'": (
        "decoder",
        lambda f: f.spec.for_known_first and not f.pattern.known_first,
    ),
    "cache {f.cache!r} leaves gaps in rows: decoder {f.name!r} takes " + ", ".join(WHOLE_ROWS): (
        "cache",
        lambda f: f.rule and f.rule.rows_param and f.cache not in WHOLE_ROWS,
    ),
    "siblings {f.params[siblings]!r} is not for rule {f.rule.NAME!r}: use 'live' or 'coupled'": (
        "siblings",
        lambda f: f.rule and f.params.get("siblings") in ("isolated", "commit"),
    ),
    "cache {f.cache!r} sees the whole canvas: it needs lookahead " + repr(CANVAS): (
        "cache",
        lambda f: f.cache in ("dual", "dsb") and f.lookahead != CANVAS,
    ),
    "cache 'entropy' reads entropies, which rule 'saber' reports with precision 'double' only": (
        "cache",
        lambda f: f.cache == "entropy" and f.is_(precision="single"),
    ),
    "cache 'entropy' needs positions that are ranked by probability or entropy: give threshold or factor": (
        "cache",
        lambda f: f.cache == "entropy" and "alg" in f.params and f.is_(threshold=None, factor=None, entropy_bound=None),
    ),
    "cache 'entropy' decides on the host, and siblings 'commit' on the device: use 'live' or 'coupled'": (
        "siblings",
        lambda f: f.cache == "entropy" and f.is_(siblings="commit"),
    ),
    "cache 'compact' is not for decoder {f.name!r}, which sees the whole canvas": (
        "cache",
        lambda f: f.cache == "compact" and "refresh_every" not in f.params,
    ),
    **{
        param + " needs cache 'compact', not {f.cache!r}": (param, _given(param, lambda f: f.cache != "compact"))
        for param in ("refresh_every", "refresh_on", "refresh_margin", "reuse", "settle")
    },
    "wait_most needs wait_changes or wait_margin: without them no position waits": (
        "wait_most",
        lambda f: f.rule and f.is_(wait_changes=0, wait_margin=OFF) and f.is_not_default("wait_most"),
    ),
    **{f"{param} needs extrapolate true": (param, _unextrapolated(param)) for param in ("horizon", "coverage")},
    **{
        f"{param} goes with the rule 'steps', not with threshold, factor or entropy_bound": (
            param,
            _given(param, lambda f: not f.is_(threshold=None, factor=None, entropy_bound=None)),
        )
        for param in ("alg", "alg_temp", "eps")
    },
    "alg_temp goes with an alg that ranks positions, not with 'origin'": (
        "alg_temp",
        lambda f: f.is_(alg="origin") and f.overrides.get("alg_temp"),
    ),
    "bound_on goes with the rule 'entropy_bound'": (
        "bound_on",
        _given("bound_on", lambda f: f.is_(entropy_bound=None)),
    ),
    "later_threshold goes with the rule 'threshold', not with factor, entropy_bound or steps": (
        "later_threshold",
        lambda f: not f.rule and f.is_(threshold=None) and f.overrides.get("later_threshold", OFF) != OFF,
    ),
    "lookahead {f.lookahead} is larger than the canvas of {f.length} (max_tokens)": (
        "lookahead",
        _given("lookahead", lambda f: f.number("lookahead") > f.length),
    ),
    f"block_length {AUTO!r} is for decoder 'asynclane', not for {{f.name!r}}": (
        "block_length",
        lambda f: f.is_(block_length=AUTO) and f.name != "asynclane",
    ),
    f"block_length {AUTO!r} excludes steps and isolated siblings": (
        "block_length",
        lambda f: f.is_(block_length=AUTO) and (f.number("steps") or f.is_(siblings="isolated")),
    ),
    f"block_length {AUTO!r} chooses the look-ahead, too: leave out lookahead, or give block_length a number": (
        "lookahead",
        _given("lookahead", lambda f: f.is_(block_length=AUTO)),
    ),
    "stop_threshold reads the look-ahead: give a lookahead above 0": (
        "stop_threshold",
        _stopping(lambda f: f.lookahead == 0),
    ),
    "stop_threshold {f.params[stop_threshold]} must not be below end_threshold {f.params[end_threshold]}": (
        "stop_threshold",
        _stopping(lambda f: Params(f.params).threshold("stop_threshold") < Params(f.params).threshold("end_threshold")),
    ),
    "stop_threshold goes with early_stop true alone": (
        "stop_threshold",
        _stopping(lambda f: not f.is_(early_stop=True)),
    ),
    "isolated siblings need cache 'compact' and a lookahead that is a number": (
        "siblings",
        lambda f: f.is_(siblings="isolated") and (f.cache != "compact" or f.lookahead == CANVAS),
    ),
    "refine_lookahead goes with siblings 'isolated', not {f.params[siblings]!r}": (
        "refine_lookahead",
        _given("refine_lookahead", lambda f: not f.is_(siblings="isolated")),
    ),
    "refresh_margin {f.params[refresh_margin]} is larger than the lookahead of {f.lookahead}": (
        "refresh_margin",
        _given(
            "refresh_margin", lambda f: f.lookahead != CANVAS and f.number("refresh_margin") > f.number("lookahead")
        ),
    ),
    "child_length goes with lanes that fork: siblings 'coupled' have none": (
        "child_length",
        _given("child_length", lambda f: f.is_(siblings="coupled")),
    ),
    "boundary 'stable' needs stable_steps of at least 1": (
        "stable_steps",
        lambda f: f.is_(boundary="stable", stable_steps=0),
    ),
    "steps is not for decoder {f.name!r}, whose block has no last forward: give threshold or factor": (
        "steps",
        lambda f: f.spec.policy.slides and f.number("steps"),
    ),
    # A block-causal network.
    ("decoder {f.name!r} slides its block, and no position of this model sees past its own: use 'fast-dllm'"): (
        "decoder",
        _in_blocks(lambda f: f.spec.policy.slides),
    ),
    (
        "this decoder fills the whole canvas in any order, and no position of this model sees past its block: use"
        " 'fast-dllm'"
    ): (
        "decoder",
        _in_blocks(lambda f: "block_length" not in f.params and not (f.spec.for_blocks or f.spec.own_pattern)),
    ),
    (
        "decoder 'adablock' chooses how long a block is, and this model's have {f.pattern.block_size} positions: use"
        " 'fast-dllm'"
    ): ("decoder", _in_blocks(lambda f: "delimiters" in f.params)),
    "cache 'dual' shows a block the positions after it, which this model never sees: use 'prefix', which is exact": (
        "cache",
        _exact(lambda f: f.cache == "dual"),
    ),
    "cache 'block' goes with sub-blocks, which decoder {f.name!r} does not have: it is for 'fast-dllm-v2'": (
        "cache",
        lambda f: f.cache == "block" and "sub_block_length" not in f.params,
    ),
    "cache 'focus' needs a block-causal model on one device that predicts each token at its own place: use 'prefix'": (
        "cache",
        lambda f: f.cache == "focus" and not f.pattern.selects,
    ),
    (
        "cache 'focus' predicts some positions of a block alone: it goes with serial blocks and threshold, factor or"
        " entropy_bound, as decoder 'fast-dllm' has them, not with {f.rule_given}"
    ): (
        "cache",
        lambda f: (
            f.cache == "focus"
            and (f.rule or f.spec.policy is not Blockwise or f.is_(threshold=None, factor=None, entropy_bound=None))
        ),
    ),
    "cache 'focus' goes with block_length {f.pattern.block_size}, this model's block, not {f.params[block_length]}": (
        "block_length",
        lambda f: f.cache == "focus" and f.number("block_length") != f.pattern.block_size,
    ),
    (
        "cache {f.cache!r} of decoder {f.name!r} is for models that see the whole canvas, where keys grow stale: use"
        " 'prefix', which is exact"
    ): ("{f.cache_param}", _exact(lambda f: f.cache not in EXACT_CACHES)),
    "decoder {f.name!r} keeps keys that grow stale, and those of this model's blocks are exact: use 'asynclane'": (
        "decoder",
        _exact(lambda f: f.spec.defaults.get("siblings") == "isolated"),
    ),
    "refresh_every must be 0: keys of this model's finished blocks are exact, none grow stale": (
        "refresh_every",
        _exact(lambda f: f.params.get("refresh_every")),
    ),
    "settle must be true: only keys of final tokens stay exact in this model": (
        "settle",
        _exact(lambda f: f.params.get("settle", True) is not True),
    ),
    "siblings 'isolated' is for models whose keys grow stale: those of this model's finished lanes are exact": (
        "siblings",
        _exact(lambda f: f.is_(siblings="isolated")),
    ),
    "block_length must be a multiple of this model's block of {f.pattern.block_size}, not {f.params[block_length]}": (
        "block_length",
        _in_blocks(lambda f: f.number("block_length") % f.pattern.block_size),
    ),
    "fine_length must divide this model's block of {f.pattern.block_size}, not {f.params[fine_length]}": (
        "fine_length",
        _in_blocks(lambda f: "fine_length" in f.params and f.pattern.block_size % f.params.integer("fine_length")),
    ),
    "sub_block_length must divide this model's block of {f.pattern.block_size}, not {f.params[sub_block_length]}": (
        "sub_block_length",
        _in_blocks(
            lambda f: "sub_block_length" in f.params and f.pattern.block_size % f.params.integer("sub_block_length")
        ),
    ),
    "{f.rule_given} checks drafts as block-causal models can: this one sees the whole canvas": (
        "{f.rule_param}",
        lambda f: f.checks and not f.pattern.block_size,
    ),
    "{f.rule_given} predicts a token at its own place, and this model at the one before it": (
        "{f.rule_param}",
        lambda f: f.checks and f.pattern.logit_shift,
    ),
    "rule {f.rule.NAME!r} checks drafts of serial blocks: decoder {f.name!r} has other lanes": (
        "rule",
        lambda f: f.checks and f.spec.policy is not Blockwise,
    ),
    "block_length must be this model's block of {f.pattern.block_size}, not {f.params[block_length]}": (
        "block_length",
        lambda f: f.checks and f.number("block_length") != f.pattern.block_size,
    ),
    **{
        f"{param} goes with routing {' or '.join(map(repr, routings))}, not {{f.params[routing]!r}}": (
            param,
            _routed_otherwise(param, routings),
        )
        for param, routings in ROUTED.items()
    },
    # Schedules and single rules.
    "'steps' and 'threshold' exclude each other: give one": (
        "threshold",
        lambda f: f.rule and f.rule.NAME == "prophet" and f.number("steps") and not f.is_(threshold=None),
    ),
    "steps {f.params[steps]} exceed the canvas of {f.length} (max_tokens): some forwards would be empty": (
        "steps",
        lambda f: "alg" in f.params and f.number("steps") > f.length,
    ),
    (
        "steps must be a multiple of the canvas's {f.blocks} blocks (max_tokens {f.length} / {f.block_param}"
        " {f.block}), not {f.params[steps]}"
    ): (
        "steps",
        lambda f: "alg" not in f.params and f.number("steps") % f.blocks,
    ),
    "answer_at {f.params[answer_at]} is past the canvas of {f.length} (max_tokens)": (
        "answer_at",
        lambda f: "answer_at" in f.params and f.number("answer_at") >= f.length,
    ),
    "lower_threshold {f.params[lower_threshold]} must not exceed upper_threshold {f.params[upper_threshold]}": (
        "{f.bound_given[lower_threshold]}",
        lambda f: f.number("lower_threshold") > f.number("upper_threshold"),
    ),
    "block_count {f.params[block_count]} exceeds the {f.forwards} forwards of a canvas of {f.length} (max_tokens)": (
        "block_count",
        lambda f: f.number("block_count") > f.forwards,
    ),
    # Host rules with lanes and networks.
    "rule {f.rule.NAME!r} decides how long the canvas is, which decoder {f.name!r} has lanes of its own for": (
        "rule",
        lambda f: f.rule and f.rule.grows and f.spec.policy is not Blockwise,
    ),
    "cache {f.cache!r} leaves out positions that rule {f.rule.NAME!r} reads: use 'none' or 'prefix'": (
        "cache",
        lambda f: f.rule and f.rule.grows and f.cache not in ("none", "prefix"),
    ),
    "{f.rule_given} looks for an end after its block, which no position of this model sees": (
        "{f.rule_param}",
        lambda f: f.rule and f.rule.grows and (f.pattern.bounded or f.pattern.known_first),
    ),
    "rule {f.rule.NAME!r} changes committed tokens, on which other lanes of decoder {f.name!r} build": (
        "rule",
        lambda f: f.rule and f.rule.revises and not f.spec.policy.serial,
    ),
    "rule {f.rule.NAME!r} needs replicas of one lane, where decoder {f.name!r} has many": (
        "rule",
        lambda f: f.rule and f.rule.replica_count and not f.spec.policy.serial,
    ),
    "{f.rule_given} needs replicas that this model cannot have: no position sees past its block": (
        "{f.rule_param}",
        lambda f: f.rule and f.rule.replica_count and f.pattern.bounded,
    ),
    "{f.rule_given} needs replicas that this model cannot have: a token is predicted at the one before it": (
        "{f.rule_param}",
        lambda f: f.rule and f.rule.replica_count and f.pattern.logit_shift,
    ),
    # A network that reads known tokens first.
    "{f.rule_given} reads this model's output at known tokens, which predicts nothing: use 'wedlm'": (
        "{f.rule_param}",
        _known_first(lambda f: f.rule and f.rule.revises),
    ),
    "{f.rule_given} needs replicas that this model cannot have: its attention is causal": (
        "{f.rule_param}",
        _known_first(lambda f: f.rule and f.rule.replica_count),
    ),
    (
        "decoder {f.name!r} computes a block without the known tokens after it, which this model reads first: use"
        " 'wedlm'"
    ): ("decoder", _known_first(lambda f: f.rule and f.rule.layout in (Layout.ENSEMBLE, Layout.VERIFIED))),
}


@dataclass(frozen=True, slots=True)
class VocabularyFacts:
    """A decoder and a vocabulary."""

    decoder: Decoder
    vocabulary: Vocabulary

    @property
    def absent(self) -> tuple[str, str, str] | None:
        """A parameter, its value and advice, if the value needs a token that the vocabulary does not have."""
        for param, classes in self.decoder.policy.TOKENS.items():
            value = getattr(self.decoder.policy, param)
            if not self.vocabulary.has(classes[value]):
                others = [repr(other) for other, kinds in classes.items() if self.vocabulary.has(kinds)]
                return param, value, f"give {' or '.join(others)}" if others else "use another decoder"
        return None


VOCABULARY_REFUSALS: Refusals[VocabularyFacts] = {
    "{f.absent[0]} {f.absent[1]!r} needs a token that this model's vocabulary does not have: {f.absent[2]}": (
        "{f.absent[0]}",
        lambda f: f.absent,
    ),
    (
        "decoder {f.decoder.name!r} and its rule weigh tokens by how frequent they are: this model's folder has no"
        " token_frequencies.json, a list of counts by token id"
    ): ("{f.decoder.weighs_tokens}", lambda f: f.decoder.weighs_tokens and not len(f.vocabulary.frequencies)),
    "decoder {f.decoder.name!r} does not apply this model's tokens that insert and delete: use 'indel'": (
        "decoder",
        lambda f: f.vocabulary.controls and f.decoder.name != "indel",
    ),
}


@dataclass(frozen=True, slots=True)
class RequestFacts(VocabularyFacts):
    """A request, the network and the server that get it. `infill` is the parameter that gives tokens after open
    positions, `grammar` the one that constrains its text, both empty if none does; a `whole` request must fit a step;
    `required` and `available` are slots, pages and tokens of a step."""

    pattern: AttentionPattern
    positions: int  # of prompt, canvas and suffix
    max_positions: int
    prompt: int  # tokens
    infill: str
    grammar: str
    logprobs: str  # the parameter that requests them; empty if none does
    measured: bool  # the server knows the time of its steps
    watched: bool  # its lanes are reported
    penalty: str  # the parameter that sets a penalty on tokens of the answer; empty if none does
    whole: bool
    required: tuple[int, int, int]
    available: tuple[int, int, int]

    @property
    def too_long(self) -> bool:
        networks = 2 if self.decoder.layout is Layout.DRAFTER else 1  # that compute a prompt in one step
        return self.whole and networks * self.pattern.ceil(self.positions) > self.available[2]

    @property
    def first(self) -> str:
        """The parameter that has the first token."""
        return "template" if self.infill == "template" else "prompt"


def _on_canvases(fact: str) -> Callable[[RequestFacts], object]:
    return lambda f: f.pattern.canvas_length and getattr(f, fact)


def _while_growing(fact: str) -> Callable[[RequestFacts], object]:
    return lambda f: f.decoder.grows and getattr(f, fact)


REQUEST_REFUSALS: Refusals[RequestFacts] = {
    **{
        "{f." + fact + "} is not for this model: " + why: (param, _on_canvases(fact))
        for fact, param, why in (
            ("infill", "{f.infill}", "the text before a canvas is all that it sees"),
            ("grammar", "{f.grammar}", "the tokens of a canvas change until it is done"),
            ("penalty", "{f.penalty}", "the tokens of a canvas change until it is done"),
            ("logprobs", "{f.logprobs}", "the tokens of a canvas change until it is done"),
        )
    },
    "include_lanes is not for this model: a canvas is denoised as a whole": ("stream_options", _on_canvases("watched")),
    "{f.first} must begin with a token: this model predicts each token at the one before it": (
        "{f.first}",
        lambda f: f.prompt < f.pattern.logit_shift,
    ),
    (
        "decoder {f.decoder.name!r} needs room for {f.decoder.replica_positions} replica positions after"
        " {f.positions} tokens, of {f.max_positions} in all: lower block_length or max_tokens"
    ): ("decoder", lambda f: f.positions + f.decoder.replica_positions > f.max_positions),
    "isolated siblings see nothing after their look-ahead: they exclude a {f.infill}": (
        "siblings",
        lambda f: f.decoder.layout is Layout.ISOLATED and f.infill,
    ),
    **{
        "{f." + fact + "} is not for decoder {f.decoder.name!r}, whose canvas grows": (
            "{f." + fact + "}",
            _while_growing(fact),
        )
        for fact in ("infill", "grammar")
    },
    "template is not for decoder {f.decoder.name!r} and its rule, which change committed tokens": (
        "template",
        lambda f: f.infill == "template" and f.decoder.revises,
    ),
    "template is not for decoder {f.decoder.name!r}, whose branches begin with an open canvas": (
        "template",
        lambda f: f.infill == "template" and f.decoder.layout is Layout.ENSEMBLE,
    ),
    "{f.grammar} is not for decoder {f.decoder.name!r} and its rule, which change committed tokens": (
        "{f.grammar}",
        lambda f: f.grammar and f.decoder.revises,
    ),
    (
        "decoder {f.decoder.name!r} does not know the probability of a token: it excludes logprobs, best_of, and a"
        " suffix without max_tokens"
    ): ("decoder", lambda f: f.logprobs and not f.grammar and not f.decoder.scored),
    "{f.grammar} is not for decoder {f.decoder.name!r}, whose drafts it would change": (
        "{f.grammar}",
        lambda f: f.grammar and f.decoder.layout is Layout.VERIFIED,
    ),
    "{f.grammar} is not for decoder {f.decoder.name!r}, whose drafts it would change: use 'autoregressive'": (
        "{f.grammar}",
        lambda f: f.grammar and f.decoder.layout is Layout.DRAFTER,
    ),
    "{f.penalty} is not for decoder {f.decoder.name!r}, which checks several tokens at once: use 'autoregressive'": (
        "{f.penalty}",
        lambda f: f.penalty and f.decoder.layout is Layout.DRAFTER,
    ),
    "{f.infill} is not for this model: no position sees past its block": (
        "{f.infill}",
        lambda f: f.pattern.bounded and f.infill,
    ),
    **VOCABULARY_REFUSALS,
    "cache 'focus' and {f.grammar} exclude each other: a grammar needs the first open position in every step": (
        "cache",
        lambda f: f.grammar and f.decoder.selects,
    ),
    "siblings 'isolated' and {f.grammar} exclude each other: a grammar has one lane at a time": (
        "siblings",
        lambda f: f.grammar and f.decoder.layout is Layout.ISOLATED,
    ),
    "decoder {f.decoder.name!r} and {f.grammar} exclude each other: its branches differ": (
        "decoder",
        lambda f: f.grammar and f.decoder.layout is Layout.ENSEMBLE,
    ),
    "early_stop false and {f.grammar} exclude each other: a grammar decides where to end": (
        "early_stop",
        lambda f: f.grammar and not f.decoder.early_stop,
    ),
    "stop_threshold and {f.grammar} exclude each other: a grammar decides where to end": (
        "stop_threshold",
        lambda f: f.grammar and f.decoder.stop_given,
    ),
    f"block_length {AUTO!r} needs a server that has measured its steps": (
        "block_length",
        lambda f: f.decoder.adaptive and not f.measured,
    ),
    ("a step of {f.available[2]} tokens cannot hold all {f.positions}, and scores need them at once: send fewer"): (
        "{f.first}",
        lambda f: f.too_long and f.decoder.name == "likelihood",
    ),
    "two networks compute this request's {f.positions} tokens at once, and a step has {f.available[2]}: send fewer": (
        "decoder",
        lambda f: f.too_long and f.decoder.layout is Layout.DRAFTER,
    ),
    (
        "this request's {f.positions} tokens are computed at once, and a step has {f.available[2]}: decoder 'fast-dllm'"
        " with its own cache, without branches and a suffix, computes them in parts; or send fewer"
    ): ("decoder", lambda f: f.too_long),
    (
        "{f.required[0]} rows at a time need {f.required[0]} requests' slots, {f.required[1]} pages and"
        " {f.required[2]} tokens in a step; there are {f.available[0]}, {f.available[1]} and {f.available[2]}: lower"
        " {f.decoder.branch_param}"
    ): (
        "{f.decoder.branch_param}",
        lambda f: f.decoder.branches and any(need > have for need, have in zip(f.required, f.available, strict=True)),
    ),
}


def refuse(facts: DecoderFacts | VocabularyFacts | RequestFacts) -> None:
    """Raises `ParamError` for the first row that holds."""
    rows: Refusals[Any]
    match facts:
        case DecoderFacts():
            rows = DECODER_REFUSALS
        case RequestFacts():
            rows = REQUEST_REFUSALS
        case VocabularyFacts():
            rows = VOCABULARY_REFUSALS
    for message, (param, holds) in rows.items():
        if holds(facts):
            raise ParamError(param.format(f=facts), message.format(f=facts))


def _exact_cache(params: Params) -> CachePolicy:
    return Compact(Params({**params, "refresh_every": 0}))


# Those whose keys and values of finished blocks are exact.
EXACT_CACHES: Mapping[str, Callable[[Params], CachePolicy]] = {
    "none": NoCache,
    "prefix": _exact_cache,
    "compact": _exact_cache,
    "block": Block,
    "focus": Focus,
}

# Drafts after a block bind that block, which cannot see them. On 150 code problems drafts above 0.995 left 0.90 right,
# above 0.999 0.97, above 0.9997 all, at nearly the same number of forwards (7.8; without drafts 9.6).
DRAFT_THRESHOLD = 0.9998

# AdaBlock's for Dream, arXiv 2509.26432.
SHIFTED_DELIMITERS: Mapping[str, object] = {"delimiters": "newlines", "delimiter_threshold": 0.5}


def fitted(defaults: Mapping[str, object], pattern: AttentionPattern) -> Mapping[str, object]:
    """A decoder's defaults on a network. With blocks, a lane is one of them: a position in a second one could commit
    before the first is full, which cannot see it and may then contradict it (tiny-sdar at 32 positions a lane: 0.71 of
    the code problems right, at 16 all). Serial decoders, which have no look-ahead, cache the blocks before theirs."""
    fit = dict(defaults)
    if pattern.logit_shift and "delimiter_threshold" in defaults:
        fit |= SHIFTED_DELIMITERS
    if pattern.canvas_length:
        return fit | {name: value for name, value in pattern.sampler if name in defaults}
    if not pattern.block_size:
        return fit
    if defaults.get("lookahead", CANVAS) == CANVAS:
        if defaults.get("cache") in (*EXACT_CACHES, "dual"):  # a cache that is a decoder of its own is refused
            fit["cache"] = "prefix"
        if "lookahead" in defaults:
            fit["lookahead"] = 0
    if pattern.known_first:  # a mask sees the known tokens after its lane
        return fit
    if "block_length" in defaults:
        fit["block_length"] = pattern.block_size
    if isinstance(sub_block := defaults.get("sub_block_length"), int):
        fit["sub_block_length"] = math.gcd(sub_block, pattern.block_size)
    if "draft_threshold" in defaults:
        fit["draft_threshold"] = DRAFT_THRESHOLD
    return fit
