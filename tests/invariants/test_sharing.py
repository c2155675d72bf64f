"""Choices of one prompt share its pages, and each answers as if it were alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from asynclane.scheduler import Sampling

from ..support.cases import CHATS, STORY, TEXT, comparable, network
from ..support.driver import LIMITS, TWO_IN_FLIGHT, Spec
from ..support.scale import LONG

SEEDS = [Sampling(1.0, seed=seed) for seed in range(3)]
SUFFIX = TEXT.encode(" The end.", specials=False)
LANES = {"threshold": 0.6}


def choices(spec: Spec) -> list[Spec]:
    return [replace(spec, sampling=sampling, share_group="one") for sampling in SEEDS]


@pytest.mark.parametrize(
    ("name", "spec", "shared"),
    [
        pytest.param("tiny-llada", Spec(STORY, 12, ranks=1), len(STORY) // 16, marks=LONG),
        ("tiny-llada", Spec(STORY, 12, suffix=SUFFIX), len(STORY) // 16),
        ("shifted", Spec([*range(2, 18), *range(2, 18), 5], 20, params=LANES), 2),
        # Where the prompt ends with a page, the position that predicts the first token is in it: it is not shared.
        *[("shifted", Spec((list(range(2, 18)) * 2)[:size], 20, params=LANES), 1) for size in (31, 32)],
        # Decoders that compute a prompt again share nothing.
        pytest.param("tiny-llada", Spec(STORY, 12, params={"refresh_every": 1}), 0, marks=LONG),
        ("tiny-llada", Spec(STORY, 12, params={"siblings": "isolated", "lookahead": 1}), 0),
        ("tiny-llada", Spec(STORY, 12, "fast-dllm"), 0),
    ],
    ids=lambda value: f"{value.decoder} {value.params} {len(value.prompt)}" if isinstance(value, Spec) else str(value),
)
def test_choices_share_whole_pages_of_their_prompt(name: str, spec: Spec, shared: int) -> None:
    net = network(name)
    first, *others = zip(choices(spec), net.run(choices(spec)), strict=True)
    for number, (choice, answer) in enumerate([first, *others]):
        (alone,) = net.run([replace(choice, share_group=None)])
        assert comparable(alone) | {"positions": 0} == comparable(answer) | {"positions": 0}
        assert alone.computed_tokens - answer.computed_tokens == (16 * shared if number else 0)
        assert alone.own_pages - answer.own_pages == shared


@pytest.mark.parametrize("sharing", [True, False], ids=["prefix-sharing", "no-prefix-sharing"])
def test_on_a_block_causal_network_a_prompt_is_computed_once(sharing: bool) -> None:
    net, spec = network("tiny-sdar"), Spec((CHATS[3] * 5)[:160], 16, "fast-dllm", ranks=2)
    answers = net.run(choices(spec), replace(net.limits, prefix_sharing=sharing))
    assert [answer.cached_tokens for answer in answers] == [0, 160, 160]
    for choice, answer in zip(choices(spec), answers, strict=True):
        assert comparable(net.run([replace(choice, share_group=None)])[0]) == comparable(answer)


def test_choices_that_wait_for_a_slot_answer_the_same() -> None:
    """The first may have left, with the pages, before others come."""
    net, specs = network("tiny-llada"), choices(Spec(STORY, 8))
    wanted = [answer.canvas.tolist() for answer in net.run(specs)]
    for slots in (1, 2):
        tight = replace(LIMITS, slots=slots, pages=64, step_tokens=1024)
        assert [answer.canvas.tolist() for answer in net.run(specs, tight)] == wanted
    assert [answer.canvas.tolist() for answer in net.run(specs, halving=TWO_IN_FLIGHT)] == wanted
