"""The table of requests whose answers must not depend on circumstances: networks, and requests for each.

`cases(network)` has every decoder, lanes with every rule, every cache and every kind of sibling, with every kind of
sampling, preferences, scores, suffixes and grammars. A new decoder, rule or cache is in it without a line here; a new
parameter needs one. Of the embedded models and the families `make test` has a part of the decoders, for each of them
another one: the small networks have all.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from asynclane.models.checkpoint.config import read_config
from asynclane.models.checkpoint.registry import Hardware, load_runner
from asynclane.models.exec.memory import Memory
from asynclane.models.exec.pair import Pair
from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import Sampling
from asynclane.scheduler.decoding.attention_pattern import PLAIN, AttentionPattern, Drafter
from asynclane.scheduler.decoding.cache import CACHES
from asynclane.scheduler.decoding.commit import HOST_RULES
from asynclane.scheduler.decoding.lane_tree import Layout
from asynclane.scheduler.decoding.params import ParamError
from asynclane.scheduler.decoding.registry import DECODERS
from asynclane.scheduler.decoding.resolve import resolve
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.scheduler.logit_bias import Preferences
from asynclane.scheduler.memory.pages import Limits
from asynclane.server.text.tokenizer import Tokenizer

from . import fakes
from .checkpoints import MASKED, write_checkpoint
from .driver import (
    BLOCKS_MODEL,
    FILLING,
    LIMITS,
    MODEL,
    Answer,
    Spec,
    embedded_runner,
    embedded_vocabulary,
    refusal,
    run,
)
from .golden import WHOLE
from .grammars import ORDER, Verses, schema
from .scale import ALL, part
from .small_network import small_pair, small_runner

Variant = tuple[str, dict[str, object]]

QUESTIONS = [
    "What is the capital of France?",
    "Tom has 12 books. He buys 7 more books. How many books does Tom have now?",
    "Sort these numbers from small to large: 41, 7, 93, 20.",
    "Write a Python function `count_even(numbers)` that returns the number of even numbers in a list.",
    "Tell me a short story about Mia and a fox at the park.",
    "Reverse this list: 5, 3, 8.",
    "Who are you?",
    "Repeat this list: 1, 2, 3, 4, 5, 6.",
]
TEXT = Tokenizer(MODEL)


def chat(question: str) -> list[int]:
    return TEXT.encode_chat([{"role": "user", "content": question}])


CHATS = [chat(question) for question in QUESTIONS]
STORY, REPEAT = CHATS[4], CHATS[7]
FAMILY_LIMITS = Limits(slots=8, pages=64, page_size=16, step_tokens=256, max_model_len=96, max_queue=1024)
FAMILY_PROMPTS = [[7, 300, 21, 999], [5 + n for n in range(17)], [44]]
FAMILY_LENGTH = 16

# Every parameter of a request that is not the decoder's, by what it changes. Token ids are in every vocabulary here.
PARAMETERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"sampling": Sampling(0.8, 0.9, 3)},
    "scored": {"ranks": 2},
    "hot": {"sampling": Sampling(1.3, 1.0, 4), "ranks": 0},
    "presence": {"preferences": Preferences(presence=1.5)},
    "narrow": {"sampling": Sampling(1.0, 0.95, 11, top_k=8, min_p=0.02)},
    "frequency": {"preferences": Preferences(frequency=1.0), "ranks": 5},
    "repetition": {"preferences": Preferences(repetition=1.4)},
    "bias": {"preferences": Preferences(bias={17: -math.inf, 12: 3.0})},
    "endless": {"preferences": Preferences(ignore_end=True)},
    "min_tokens": {"preferences": Preferences(presence=0.5, min_tokens=20)},
    "all": {
        "preferences": Preferences(-0.5, 0.5, {17: 2.0}, min_tokens=25),
        "sampling": Sampling(0.9, 1.0, 12, top_k=40),
        "ranks": 3,
    },
}

# Parameters of decoders that are worth a case of their own, besides every decoder with its defaults.
VARIANTS: list[Variant] = [
    ("asynclane", {"threshold": 0.7, "refresh_every": 1, "max_lanes": 8}),
    ("asynclane", {"threshold": 0.6, "refresh_every": 1, "max_lanes": 8, "block_length": 8}),
    ("asynclane", {"siblings": "isolated", "threshold": 0.99, "max_lanes": 3, "lookahead": 1}),
    ("asynclane", {"siblings": "isolated", "threshold": 0.9, "max_lanes": 3, "boundary": "comma", "lookahead": 1}),
    ("asynclane", {"siblings": "commit", "boundary": "comma"}),
    ("asynclane", {"siblings": "coupled", "threshold": 0.5, "draft_threshold": 0.8, "max_lanes": 8}),
    ("asynclane", {"threshold": 0.5, "settle": False, "boundary": "stride"}),
    ("asynclane", {"reuse": False, "refresh_every": 2, "refresh_on": "steps", "end_threshold": 0.0}),
    ("asynclane", {"cache": "settled", "stop_threshold": 0.8}),
    ("asynclane", {"reuse": False, "stable_steps": 1, "threshold": 0.6}),
    ("asynclane-paper", {"threshold": 0.5, "min_fill": 0.2, "min_steps": 1, "block_length": 8, "max_lanes": 4}),
    ("asynclane-paper", {"siblings": "live", "threshold": 0.5, "min_fill": 0.2, "child_length": "rest"}),
    ("asynclane-paper", {"siblings": "commit", "boundary": "stride", "min_fill": 0.2, "refresh_margin": 1}),
    ("adablock", {"cache": "none", "delimiters": "newlines"}),
    ("adablock", {"factor": 1.0, "delimiters": "newline_period_comma"}),
    ("ass", {"block_count": 1, "cache": "prefix"}),
    ("ass", {"block_count": 1, "cache": "dual"}),
    ("d2f", {"add_threshold": 0.2}),
    ("d2f", {"cache": "finished", "cache_delay": 2, "refresh_interval": 7}),
    ("d3llm", {"cache": "finished", "cache_delay": 1, "refresh_interval": 4}),
    ("d3llm", {"cache": "prefix"}),
    ("dream", {"steps": 12, "alg": "topk_margin", "cache": "prefix"}),
    ("ce", {"wait_changes": 2, "wait_margin": 0.0, "threshold": 0.3}),
    ("ce", {"wait_margin": 0.05, "wait_most": 1, "threshold": 0.2, "cache": "none"}),
    ("daedal", {"canvas_start": 5, "canvas_step": 3, "block_length": 4, "threshold": 0.2}),
    ("daedal", {"canvas_start": 8, "canvas_step": 4, "grow_below": 0.0, "unsure_below": 0.5, "cache": "prefix"}),
    ("dsb", {"block_length": 8, "max_block_length": 12, "prefix_window": 3}),
    ("dsb", {"block_length": 4, "factor": 1.0, "cache": "none"}),
    ("dsb", {"block_length": 4, "rule": "klass", "watch": "lanes"}),
    ("dream", {"steps": 12, "alg": "origin", "cache": "dual"}),
    ("dream", {"alg_temp": 0.5}),
    ("asynclane", {"entropy_bound": 0.3}),
    ("adablock", {"entropy_bound": 0.2}),
    ("elastic-cache", {"least_similarity": 0.95, "block_length": 6, "factor": 1.0}),
    ("elastic-cache", {"rule": "credit", "threshold": 0.4}),
    ("entropy-bound", {"entropy_bound": 1.0, "bound_on": "all", "block_length": 16}),
    ("entropy-cache", {"entropy_limit": 2.0, "recent_tokens": 3, "factor": 1.0, "block_length": 12}),
    ("fast-dllm", {"cache": "prefix", "factor": 1.0, "block_length": 16}),
    ("fast-dllm", {"cache": "none", "threshold": 0.8}),
    ("fast-dllm", {"cache": "d2", "candidates": 4}),
    ("fast-dllm", {"cache": "focus", "threshold": 0.3}),
    ("fast-dllm", {"cache": "focus", "focus_alpha": 3, "entropy_bound": 1.0}),
    ("fast-dllm-v2", {"cache": "block", "sub_block_length": 4, "threshold": 0.6}),
    ("fast-dllm-v2", {"sub_block_length": 2, "early_stop": "block"}),
    ("fast-dllm", {"rule": "klass", "watch": "canvas", "cache": "prefix"}),
    ("fast-dllm", {"rule": "tspd"}),
    ("freedave", {"draft_steps": 3, "cache": "none"}),
    ("klass", {"history": 1, "kl_threshold": 0.2, "cache": "dual"}),
    ("leap", {"block_length": 16, "cache": "dual"}),
    ("learn2pd", {"eotp": False, "extrapolate": True, "cache": "prefix"}),
    ("llada", {"steps": 12, "block_length": 12, "cache": "dual"}),
    ("llada2", {"block_length": 16, "edit_threshold": 0.0, "threshold": 0.5}),
    ("autoregressive", {"early_stop": "block"}),
    ("autoregressive", {"early_stop": False}),
    ("deer", {"draft_length": 3}),
    ("deer", {"draft_length": 1, "early_stop": False}),
    ("blockbatch", {"branches": 2, "smallest_block": 3, "refresh_size": 4, "share_prompt": True}),
    ("blockbatch-dream", {"branches": 3, "smallest_block": 2, "refresh_size": 5, "share_prompt": True}),
    ("blockbatch-dream", {"branches": 2, "sync_lag": 1, "end_cycle": False, "threshold": 0.4}),
    ("lopa", {"block_length": 12, "cache": "prefix", "branches": 2}),
    ("s2d2", {"draws": "seeded", "cache": "none"}),
    ("s2d2", {"cached": "block", "drafted": "block", "routing": "bandit", "draws": "seeded"}),
    ("s2d2", {"drafted": "block", "routing": "hysteresis", "score_on": 3.0, "score_off": 1.0}),
    ("s2d2", {"cached": "block", "routing": "span", "least_span": 4, "early_stop": False}),
    ("nap", {"tokens_per_call": 2, "summary_after": 1.0, "early_stop": False}),
    ("nap", {"tokens_per_call": 3, "summary_after": 0.0, "cache": "dual"}),
    ("pc-sampler", {"steps": 8, "block_length": 16, "position_decay": 0.0, "score_cap": 0.5, "cache": "dual"}),
    ("psd", {"draft_steps": 3, "threshold": 0.3, "draft_decay": 0.5}),
    ("psd", {"draft_steps": 2, "threshold": 0.2, "accept": "subset", "block_length": 8, "cache": "none"}),
    ("saber", {"block_length": 16, "precision": "double"}),
    ("slowfast", {"explore": "stable", "slow_calls": 3}),
    ("t2m", {"block_length": 8, "threshold": 0.3, "remask_threshold": 0.6, "remask_times": 2}),
    ("t2m", {"remask": "swap", "remask_threshold": 0.4, "threshold": 0.2, "remask_share": 0.5}),
    ("t2m", {"remask": "drop", "remask_threshold": 0.02, "threshold": 0.2, "cache": "none"}),
    ("tccf", {"turn": "newline", "fine_length": 4}),
    ("tccf", {"turn": "newline", "block_length": 32}),
    ("tspd", {"extrapolate": True, "cache": "none"}),
    ("wedlm", {"window_length": 5, "entropy_threshold": 1.5, "position_penalty": 0.2}),
    ("wedlm", {"window_length": 1, "cache": "none"}),
    ("window", {"cycle": 3, "window_tokens": 12, "active_tokens": 4}),
    ("wino", {"block_length": 16, "cache": "prefix"}),
]
# Decoders with every parameter of a request, by network: those whose rule the device applies, and WeDLM's own.
SWEPT = {
    "whole-canvas": ("asynclane", "fast-dllm", "llada"),
    "known-first": ("asynclane", "wedlm"),
    **dict.fromkeys(("next-token", "drafted"), ("autoregressive", "deer")),
}
AGAIN = 3 if ALL else 1  # prompts for each decoder
UNSCORED = ("blockbatch", "blockbatch-dream", "indel", "lopa", "s2d2")  # they do not know how likely a token was
UNFILLED = ("daedal",)  # their canvas grows, so nothing is given after it
UNGUIDED = (
    "asynclane-paper",
    "blockbatch",
    "blockbatch-dream",
    "daedal",
    "deer",
    "indel",
    "llada2",
    "s2d2",
    "saber",
    "t2m",
    "wino",
)  # a grammar would change what they rely on
# Those with a grammar on the embedded models: rules of the device and of the host, drafts, measures, several blocks.
GUIDED = ("asynclane", "fast-dllm", "freedave", "llada", "dream", "d3llm", "learn2pd", "d2cache")
FEWER: Mapping[str, dict[str, object]] = {  # of what costs as many rows as a step has
    "asynclane-paper": {"max_lanes": 3, "refine_lookahead": 2},
    "blockbatch": {"branches": 2},
    "blockbatch-dream": {"branches": 2},
    "freedave": {"draft_steps": 2},
    "lopa": {"branches": 2},
    "psd": {"draft_steps": 2},
    **FILLING,
}


@dataclass(frozen=True, slots=True)
class Network:
    runner: Runner | Pair
    vocabulary: Vocabulary
    pattern: AttentionPattern
    limits: Limits
    prompts: list[list[int]]
    lengths: tuple[int, ...]  # of canvases

    def run(self, specs: list[Spec], limits: Limits | None = None, **options: Any) -> list[Answer]:
        return run(self.runner, self.vocabulary, specs, limits or self.limits, pattern=self.pattern, **options)

    @property
    def tight(self) -> Limits:
        """So few slots, pages and positions in a step that requests wait for each of them."""
        pages = -(-(max(map(len, self.prompts)) + 120) // self.limits.page_size)
        length = pages * self.limits.page_size
        return replace(self.limits, slots=4, pages=4 * pages, step_tokens=4 * length, max_model_len=length)


FAMILIES = MASKED
SMALL = {
    "whole-canvas": PLAIN,
    "shifted": AttentionPattern(logit_shift=1),
    "block-causal": AttentionPattern(block_size=8, selects=True),
    "shifted-blocks": AttentionPattern(logit_shift=1, block_size=8),
    "known-first": AttentionPattern(block_size=1, known_first=True),
    "next-token": AttentionPattern(logit_shift=1, block_size=1),
    "drafted": AttentionPattern(logit_shift=1, block_size=1, drafter=Drafter(block_size=8)),
}
# Small networks on which faults and circumstances are tried; `make test` leaves out the one that combines two others.
TRIED = tuple(name for name in SMALL if ALL or name != "shifted-blocks")
NETWORKS = ("tiny-llada", "tiny-sdar", *SMALL, *FAMILIES)


@cache
def network(name: str) -> Network:
    """The embedded models, small networks of random weights whose vocabulary has many boundaries, and one of random
    weights of every family."""
    if name == "tiny-llada":
        prompts = [CHATS[0], CHATS[7], CHATS[5], CHATS[6], [7]]
        return Network(embedded_runner(), embedded_vocabulary(), PLAIN, LIMITS, prompts, (16, 24, 12, 1))
    if name == "tiny-sdar":
        pattern, limits = AttentionPattern(block_size=16, selects=True), replace(LIMITS, prefix_sharing=True)
        prompts = [(CHATS[3] * 2)[:48] + CHATS[0], (CHATS[3] * 2)[:48] + CHATS[6], CHATS[7], CHATS[5], [7]]
        runner = embedded_runner(model=BLOCKS_MODEL)
        return Network(runner, embedded_vocabulary(), pattern, limits, prompts, (16, 24, 33, 1))
    if name in SMALL:
        pattern, rng = SMALL[name], random.Random(2)
        small: Runner | Pair = small_pair(pattern) if pattern.drafter else small_runner(pattern)
        plain = [token for token in range(2, 19) if token != fakes.IDS["`"]]  # an answer to it may be code
        prompts = [rng.choices(plain, k=size) for size in (1, 16, 31, 32, 19)]
        return Network(small, fakes.vocabulary(), pattern, LIMITS, prompts, (16, 25, 1))
    with TemporaryDirectory() as directory:
        path, limits = write_checkpoint(Path(directory), name), FAMILY_LIMITS
        config = read_config(path)
        memory = Memory(limits.slots, limits.page_size, limits.step_tokens, limits.pages * limits.page_size)
        runner = load_runner(path, config, memory, Hardware("cpu", "float32"), [1]).runner
    return Network(runner, embedded_vocabulary(), config.pattern, limits, FAMILY_PROMPTS, (FAMILY_LENGTH,))


def decoders(pattern: AttentionPattern) -> list[Variant]:
    """Every decoder that the network takes."""
    return _some([(name, FEWER.get(name, {})) for name in DECODERS if refusal(name, pattern) is None], pattern)


def _some(found: list[Variant], pattern: AttentionPattern) -> list[Variant]:
    """All; or some, where known tokens are read first: such rows are those of blocks in another order."""
    if not pattern.known_first:
        return found
    own = [variant for variant in found if variant[0] == "wedlm" or variant == ("asynclane", {})]
    return own + part([variant for variant in found if variant not in own], 4)


def variants(pattern: AttentionPattern) -> Iterator[Variant]:
    """`VARIANTS`, and lanes with every rule and every cache, as far as the network takes them."""
    pairs = itertools.product(HOST_RULES, CACHES) if ALL else zip(HOST_RULES, itertools.cycle(CACHES), strict=False)
    axes = [*({"cache": cached} for cached in CACHES), *({"rule": rule, "cache": cached} for rule, cached in pairs)]
    lanes = [("asynclane", {**axis, "lookahead": "canvas" if axis["cache"] in ("dual", "dsb") else 1}) for axis in axes]
    for name, params in [*VARIANTS, *lanes]:
        with suppress(ParamError):  # the tests of decoders have the refusals
            resolve(name, params, 32, pattern)
            yield name, params


def enough(length: int, params: Mapping[str, object], lengths: Iterable[int]) -> int:
    """This length of a canvas, or the longest one if it has fewer positions than a request takes steps."""
    steps = params.get("steps")
    return max(lengths) if isinstance(steps, int) and steps > length else length


def fitting(params: Mapping[str, object], length: int) -> dict[str, object]:
    """Parameters as far as a canvas of `length` positions takes them."""
    steps = params.get("steps")
    return {**params, **({"steps": min(steps, length)} if isinstance(steps, int) else {})}


def holes(length: int, mask_id: int) -> list[int]:
    """A canvas of which some tokens are given, after each third of it."""
    third = length // 3
    given = {third - 1: 9, third: 8, 2 * third: 10}
    return [given.get(place, mask_id) for place in range(length)]


def takes_suffix(spec: Spec, pattern: AttentionPattern) -> bool:
    layout = resolve(spec.decoder, spec.params, spec.max_tokens, pattern).layout
    return not pattern.bounded and layout is not Layout.ISOLATED


def takes_template(spec: Spec, pattern: AttentionPattern) -> bool:
    decoder = resolve(spec.decoder, spec.params, spec.max_tokens, pattern)
    return not (
        pattern.bounded or decoder.revises or decoder.grows or decoder.layout in (Layout.ISOLATED, Layout.ENSEMBLE)
    )


@cache
def cases(name: str) -> dict[str, Spec]:
    """The requests of a network, by a name for each."""
    net = network(name)
    cycle = itertools.cycle(PARAMETERS)
    pattern = net.pattern
    every = decoders(pattern) if name in SMALL else part(decoders(pattern), 3, seed=name)
    if name in FAMILIES:
        chosen = [(decoder, WHOLE | params, "greedy") for decoder, params in every for _ in net.prompts[:AGAIN]]
    else:
        chosen = [(*variant, next(cycle)) for variant in every]
    if name in SMALL:  # where a case costs little
        chosen += [(*variant, next(cycle)) for variant in _some(list(variants(pattern)), pattern)]
        some = tuple(DECODERS) if ALL else SWEPT.get(name, ("asynclane",))
        chosen += [(*variant, other) for variant in every for other in PARAMETERS if variant[0] in some]
    found = {}
    for number, (decoder, params, parameter) in enumerate(chosen):
        prompt, length = (few[number % len(few)] for few in (net.prompts, net.lengths))
        length = enough(length, params, net.lengths)
        spec = Spec(prompt, length, decoder, fitting(params, length), **PARAMETERS[parameter])
        if decoder in UNSCORED:
            spec = replace(spec, ranks=None)
        if decoder == "deer":  # several tokens are checked at once, so none is penalized
            spec = replace(spec, preferences=replace(spec.preferences, presence=0.0, frequency=0.0, repetition=1.0))
        if number % 7 == 2 and decoder not in UNFILLED and takes_suffix(spec, pattern):
            spec = replace(spec, suffix=prompt[:5])
        if number % 7 == 4 and length > 3 and takes_template(spec, pattern):
            spec = replace(spec, template=holes(length, net.vocabulary.mask_id), suffix=prompt[: number % 2])
        found[f"{number} {decoder} {params} {parameter}"] = spec
    if name == "tiny-llada":  # lanes that fork
        found |= {f"{decoder} {params} story": Spec(STORY, 48, decoder, params) for decoder, params in VARIANTS[:5]}
    return found | _in_a_grammar(name)


def _in_a_grammar(name: str) -> dict[str, Spec]:
    net, found = network(name), dict[str, Spec]()
    if name not in ("tiny-llada", "tiny-sdar", *SMALL):
        return found
    prompt, length, grammar = (net.prompts[4], 24, Verses) if name in SMALL else (CHATS[1], 48, schema(ORDER))
    for number, (decoder, params) in enumerate(decoders(net.pattern)):
        if decoder not in UNGUIDED and (name in SMALL or decoder in GUIDED):
            sampling = Sampling(0.8 * (number % 2), 0.95, seed=number)
            ranks = None if decoder in UNSCORED else number % 3
            spec = Spec(prompt, length, decoder, params, sampling, ranks=ranks, constraint=grammar)
            found[f"{decoder} {params} in a grammar"] = spec
    return found


@cache
def together(name: str) -> dict[str, Answer]:
    """The answers to all cases of a network, sent at once."""
    return dict(zip(cases(name), network(name).run(list(cases(name).values())), strict=True))


def comparable(answer: Answer) -> dict[str, object]:
    """All that must not depend on circumstances, to the bit. Positions computed by another request count as well."""
    return {
        "canvas": answer.canvas.tolist(),
        "streamed": answer.streamed,
        "outcome": answer.outcome,
        "forwards": answer.steps,
        "positions": answer.computed_tokens + answer.cached_tokens,
        "scores": None if answer.scores is None else [part.tolist() for part in answer.scores if part is not None],
    }


def assert_same(names: Iterable[str], answers: Iterable[Answer], wanted: Mapping[str, Answer]) -> None:
    for name, answer in zip(names, answers, strict=True):
        assert comparable(answer) == comparable(wanted[name]), name
