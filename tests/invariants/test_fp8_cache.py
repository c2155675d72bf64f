"""With keys and values in FP8, an answer depends on its request alone, as it does without.

A number is rounded by a scale of its own position and head, so neither pages nor other requests can change it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from ..support.cases import SMALL, Network, cases, comparable, network
from ..support.driver import BLOCKS_MODEL, MODEL, TWO_IN_FLIGHT, Answer, Spec, embedded_runner
from ..support.scale import ALL, part
from ..support.small_network import small_runner

MODELS = {"tiny-llada": MODEL, "tiny-sdar": BLOCKS_MODEL}
TRIED = (*MODELS, *(name for name in SMALL if (ALL or name != "shifted-blocks") and SMALL[name].drafter is None))
ONE_IN = {"tiny-llada": 60, "tiny-sdar": 40}
OF_SMALL = 200
SIZES = {"tiny-llada": (24, 256), "tiny-sdar": (32, 256)}  # of pages; others take any


@cache
def in_fp8(name: str, page_size: int = 16) -> Network:
    net = network(name)
    if name in MODELS:
        runner = embedded_runner(model=MODELS[name], page_size=page_size, kv_cache_dtype="fp8")
    else:
        runner = small_runner(net.pattern, page_size=page_size, fp8_cache=True)
    pages = net.limits.pages * net.limits.page_size // page_size
    return replace(net, runner=runner, limits=replace(net.limits, page_size=page_size, pages=pages))


@cache
def answers(name: str) -> dict[str, Answer]:
    """To a part of the cases, sent at once."""
    some = part(cases(name), ONE_IN.get(name, OF_SMALL), seed=f"{name} in FP8")
    return dict(zip(some, in_fp8(name).run(specs(name, some)), strict=True))


def specs(name: str, some: Iterable[str]) -> list[Spec]:
    return [cases(name)[case] for case in some]


def circumstances(name: str) -> dict[str, dict[str, Any]]:
    net = in_fp8(name)
    found: dict[str, dict[str, Any]] = {
        "two steps in flight": {"halving": TWO_IN_FLIGHT},
        "few slots and pages": {"limits": net.tight, "arrive_every": 1},
    }
    if net.pattern.bounded:
        chunk = max(5, net.pattern.block_size)
        found["chunks"] = {"limits": replace(net.limits, prefix_sharing=True, prefill_tokens=chunk)}
    return found


@pytest.mark.parametrize("name", TRIED)
def test_an_answer_is_the_same_alone_and_batched_with_others_and_streamed(name: str) -> None:
    for case, answer in answers(name).items():
        (alone,) = in_fp8(name).run([cases(name)[case]])
        assert comparable(alone) == comparable(answer), case
        assert answer.streamed == answer.text, case


@pytest.mark.parametrize("name", TRIED)
def test_an_answer_is_the_same_in_any_circumstances_and_in_pages_of_any_size(name: str) -> None:
    wanted = answers(name)
    for circumstance, options in part(circumstances(name).items(), 3, seed=name):
        found = in_fp8(name).run(specs(name, wanted), **options)
        assert [*map(comparable, found)] == [*map(comparable, wanted.values())], circumstance
    for size in part(SIZES.get(name, (8, 64)), 2, seed=name):
        found = in_fp8(name, size).run(specs(name, wanted))
        assert [*map(comparable, found)] == [*map(comparable, wanted.values())], size


@pytest.mark.parametrize("name", MODELS)
def test_answers_differ_from_those_without_it_in_their_last_bits_at_least(name: str) -> None:
    """Otherwise the tests above would try nothing new."""
    scored = [Spec(network(name).prompts[0], 20, decoder, ranks=2) for decoder in ("fast-dllm", "asynclane")]
    plain, rounded = (net.run(scored) for net in (network(name), in_fp8(name)))
    for one, other in zip(plain, rounded, strict=True):
        assert comparable(one)["scores"] != comparable(other)["scores"]


def test_keys_of_finished_blocks_are_exact() -> None:
    """Answers are those of no cache, to the bit: a position's keys have the same scale whenever they are computed."""
    net = in_fp8("tiny-sdar")
    for decoder in part(("fast-dllm", "asynclane"), 2):
        spec = Spec(net.prompts[0], 20, decoder, ranks=2)
        cached, computed = (net.run([replace(spec, params=params)])[0] for params in ({}, {"cache": "none"}))
        assert comparable(cached) | {"positions": 0} == comparable(computed) | {"positions": 0}
        assert cached.computed_tokens < computed.computed_tokens
