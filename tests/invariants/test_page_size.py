"""No answer depends on the size of pages: of every decoder, and of lanes that share pages with a sibling."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

import pytest

from asynclane.scheduler import PLAIN, AttentionPattern, resolve
from asynclane.scheduler.decoding.lane_tree import Layout

from ..support.cases import CHATS, REPEAT, SMALL, STORY, UNSCORED, VARIANTS, Network, assert_same, decoders, network
from ..support.driver import LIMITS, Answer, Spec, embedded_runner
from ..support.scale import ALL, part
from ..support.small_network import small_runner

NETWORKS = ("tiny-llada", "shifted", "block-causal")
SIZES = (64, 24, 40, 128) if ALL else (64, 24)  # beside 16
ISOLATED: dict[str, object] = {"siblings": "isolated", "boundary": "comma", "max_lanes": 3}


def paged(name: str, size: int) -> Network:
    net = network(name)
    runner = embedded_runner(page_size=size) if name == "tiny-llada" else small_runner(SMALL[name], page_size=size)
    pages = LIMITS.pages * LIMITS.page_size // size
    return replace(net, runner=runner, limits=replace(net.limits, page_size=size, pages=pages))


def isolated(decoder: str, params: Mapping[str, object], pattern: AttentionPattern = PLAIN) -> bool:
    return resolve(decoder, params, 64, pattern).layout is Layout.ISOLATED


@functools.cache
def specs(name: str) -> dict[str, Spec]:
    """Every decoder, on the embedded model a part, and isolated siblings that fork. Prompts end within pages of all
    sizes."""
    net, found = network(name), dict[str, Spec]()
    some = decoders(net.pattern) if name in SMALL else part(decoders(net.pattern), 6, seed=name)
    if not net.pattern.block_size:
        some += [(name, own) for name, own in VARIANTS if name.startswith("asynclane") and isolated(name, own)]
        some += [("asynclane", {**ISOLATED, "threshold": t, "refresh_every": n}) for t, n in ((0.6, 0), (0.7, 1))]
    for number, (decoder, params) in enumerate(some):
        forks = isolated(decoder, params, net.pattern)
        prompt = net.prompts[number % 5] if name in SMALL else (REPEAT, STORY)[number % 2] if forks else CHATS[6]
        ranks = None if decoder in UNSCORED else 2
        found[f"{number} {decoder} {params}"] = Spec(prompt, 64 if forks else 8, decoder, params, ranks=ranks)
    return found


@functools.cache
def wanted(name: str) -> dict[str, Answer]:
    return dict(zip(specs(name), network(name).run([*specs(name).values()]), strict=True))


@pytest.mark.parametrize(("name", "size"), [(name, size) for name in NETWORKS for size in SIZES])
def test_an_answer_is_the_same_with_pages_of_any_size(name: str, size: int) -> None:
    """`make test` runs every decoder with one of the sizes."""
    some = {case: spec for case, spec in specs(name).items() if ALL or (size == 64) == int(case.split()[0]) % 2}
    assert_same(some, paged(name, size).run([*some.values()]), wanted(name))


def test_lanes_of_these_answers_fork_within_pages() -> None:
    """Otherwise siblings would share whole pages alone."""
    for name in ("tiny-llada", "shifted"):
        assert sum(answer.forks for case, answer in wanted(name).items() if "isolated" in case or "paper" in case) > 6
