"""The outputs of further methods' own code on the embedded models, and the comparison with them.

tests/golden/methods.json.gz has, by method and network, each prompt of decoders.json.gz by its id: the distinct texts,
without the end tokens after them, and for each entry the number of its text and of its forwards.
"""

from __future__ import annotations

import gzip
import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asynclane.models.checkpoint.config import read_config
from asynclane.models.checkpoint.registry import Hardware, load_runner
from asynclane.models.exec.memory import Memory
from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import Doubles, Ints
from asynclane.scheduler.decoding.attention_pattern import AttentionPattern
from asynclane.scheduler.decoding.commit.host.s2d2 import S2D2
from asynclane.scheduler.decoding.commit.segments import Longs
from asynclane.scheduler.decoding.vocabulary import Vocabulary
from asynclane.server.text.tokenizer import Tokenizer

from .cases import TEXT, network
from .driver import BLOCKS_MODEL, LIMITS, Answer, Spec, run
from .golden import END_ID, GOLDEN, WHOLE
from .scale import ALL, part

RECORDED = json.loads(gzip.decompress((Path(__file__).parents[1] / "golden" / "methods.json.gz").read_bytes()))
PROMPTS: Mapping[str, list[int]] = {prompt["id"]: prompt["prompt_ids"] for prompt in GOLDEN["prompts"]}
LENGTH: int = GOLDEN["gen_length"]

BOUNDS = ("0.05", "0.1", "0.5")
RANKED = {"transformers": "others", "jetengine": "all"}

CASES: Mapping[str, tuple[str, Mapping[str, Mapping[str, object]]]] = {  # by method and network: decoder, parameters
    "entropy-bound on tiny-llada": (
        "entropy-bound",
        {
            f"{code}_gamma{bound}": {"entropy_bound": float(bound), "bound_on": counted, "cache": "none"}
            for code, counted in RANKED.items()
            for bound in BOUNDS
        },
    ),
    "entropy-bound on tiny-sdar": (
        "entropy-bound",
        {
            f"{code}_gamma{bound}": {"entropy_bound": float(bound), "bound_on": counted}
            for code, counted in RANKED.items()
            for bound in BOUNDS
        },
    ),
    "dsb on tiny-llada": (
        "dsb",
        {
            "dsb_greedy": {"cache": "none"},
            "dsb_constant": {"cache": "none", "max_block_length": 32},
            "dsb_cache_greedy": {},
            "dsb_cache_constant": {"max_block_length": 32},
            "dsb_cache_greedy_prefix0": {"prefix_window": 0},
            "dsb_greedy_block8": {"cache": "none", "block_length": 8},
            "dsb_constant_block8": {"cache": "none", "block_length": 8, "max_block_length": 8},
            "dsb_cache_greedy_block8": {"block_length": 8},
            "dsb_cache_constant_block8": {"block_length": 8, "max_block_length": 8},
        },
    ),
}
IN_BLOCKS: Mapping[str, object] = {"cached": "block", "drafted": "block"}
# Decoder and parameters of the entries on tiny-sdar. The name ends with the block, which may not be the network's own.
CHECKED: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "dynamic_b16": ("fast-dllm", {"threshold": 0.85}),
    "dynamic_b4": ("fast-dllm", {"threshold": 0.85}),
    "s2d2_config_b_b16": ("s2d2", {}),
    "s2d2_config_a_b4": ("s2d2", {"verify_cost": 1.0}),
    "s2d2_config_b_b16_block_cache": ("s2d2", IN_BLOCKS),
    "s2d2_span8_b16": ("s2d2", {**IN_BLOCKS, "routing": "span", "least_span": 8}),
    "s2d2_hysteresis_b16": (
        "s2d2",
        {**IN_BLOCKS, "routing": "hysteresis", "verify_cost": 1.0, "cost_by": "token"},
    ),
    "s2d2_ucb_b16": ("s2d2", {**IN_BLOCKS, "routing": "bandit"}),
}
# The ends of the entries that `make test` takes.
SOME = (
    "gamma0.1",
    "dsb_constant",
    "dsb_cache_greedy",
    "dsb_cache_constant_block8",
    "config_a_b4_half",
    "block_cache_half",
    "ucb_b16_seed42",
)


def entries() -> Iterator[tuple[str, str]]:
    """Method and entry of each comparison."""
    return ((method, entry) for method, (_, found) in CASES.items() for entry in found if ALL or entry.endswith(SOME))


def length_of(prompt: list[int], block: int) -> int:
    """The canvas of the authors' code, which ends where a block does."""
    return LENGTH + -(len(prompt) + LENGTH) % (block or 1)


def assert_published(method: str, entry: str) -> None:
    (decoder, found), net = CASES[method], network(method.split()[-1])
    ids = part(RECORDED[method]["prompts"], 12, seed=entry)
    specs = [
        Spec(PROMPTS[id_], length_of(PROMPTS[id_], net.pattern.block_size), decoder, WHOLE | found[entry])
        for id_ in ids
    ]
    for id_, spec, answer in zip(ids, specs, net.run(specs), strict=True):
        assert_equal(f"{entry} {id_}", RECORDED[method]["prompts"][id_], entry, spec, answer)


def assert_equal(name: str, prompt: Mapping[str, Any], entry: str, spec: Spec, answer: Answer) -> None:
    wanted = prompt["entries"][entry]
    text = prompt["texts"][wanted["text"]]
    assert answer.canvas.tolist() == text + [END_ID] * (spec.max_tokens - len(text)), name
    assert answer.steps == wanted["calls"], name


def checked_entries() -> list[str]:
    """The entries of S2D2, and of the decoder that it begins with."""
    found = RECORDED["s2d2 on tiny-sdar"]["prompts"].values()
    names = dict.fromkeys(name for prompt in found for name in prompt["entries"])
    return [name for name in names if ALL or name.endswith(SOME)]


def assert_checked(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the authors drew, with the numbers that they drew."""
    name, _, drawn = entry.partition("_seed")
    decoder, params = CHECKED[name.removesuffix("_half")]
    pattern = AttentionPattern(block_size=4 if "_b4" in name else 16)
    vocabulary = Vocabulary(Tokenizer(BLOCKS_MODEL).pieces, TEXT.mask_id, [END_ID])  # the only end that they know
    runner = blocks_runner(pattern.block_size)
    prompts = RECORDED["s2d2 on tiny-sdar"]["prompts"]
    for id_ in part([id_ for id_ in prompts if entry in prompts[id_]["entries"]], 12, seed=entry):
        wanted = prompts[id_]["entries"][entry]
        own: dict[str, object] = {**params, "early_stop": "block"}
        if drawn:
            own["draws"] = "seeded"
            replay(wanted["draws"], monkeypatch)
        spec = Spec(PROMPTS[id_], length_of(PROMPTS[id_], pattern.block_size), decoder, own)
        (answer,) = run(runner, vocabulary, [spec], pattern=pattern)
        canvas = answer.canvas.tolist()
        text = canvas[: canvas.index(END_ID)] if END_ID in canvas else canvas
        assert text == prompts[id_]["texts"][wanted["text"]], id_
        _, checks = wanted["calls"]
        assert answer.steps == wanted["order"] + checks, id_  # drafts and checks: nothing is computed to be stored


def replay(draws: list[list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a rule draw these numbers, and these tokens."""
    left = deque(draws)

    def draw(rule: S2D2, seed: int, positions: Longs, step: int, purpose: object) -> Doubles:
        kind, *numbers = left.popleft()
        assert (kind, len(numbers)) == ("u", len(positions))
        return np.array(numbers)

    def choose(rule: S2D2, tokens: Ints, weights: Doubles, key: object) -> int:
        kind, token = left.popleft()
        assert kind == "m"
        return int(token)

    monkeypatch.setattr(S2D2, "_draw", draw)
    monkeypatch.setattr(S2D2, "_choose", choose)


@cache
def blocks_runner(block: int) -> Runner:
    """tiny-sdar, whose blocks have so many positions."""
    config = replace(read_config(BLOCKS_MODEL), block_size=block)
    memory = Memory(LIMITS.slots, LIMITS.page_size, LIMITS.step_tokens, LIMITS.pages * LIMITS.page_size)
    return load_runner(BLOCKS_MODEL, config, memory, Hardware("cpu", "float32"), [END_ID]).runner
