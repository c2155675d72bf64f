"""An answer depends on its request alone: not on others in the batch, on steps in flight, on room, or on when it came.

The requests are the table of `tests.support.cases`. Tokens, outcome, number of forwards, computed positions and
log-probabilities are compared to the bit.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from asynclane.models.exec import pack
from asynclane.scheduler import AttentionPattern, ParamError, resolve
from asynclane.scheduler.decoding.registry import DECODERS

from ..support.cases import (
    FAMILIES,
    NETWORKS,
    PARAMETERS,
    SMALL,
    TRIED,
    VARIANTS,
    assert_same,
    cases,
    network,
    together,
)
from ..support.driver import CANVASES_ONLY, TWO_IN_FLIGHT, refusal
from ..support.scale import ALL, part

PARTS = 4 if ALL else 2
# `make test` runs one in so many cases alone, `make test-golden` all.
ONE_IN = {
    "tiny-llada": 20,
    "tiny-sdar": 15,
    "whole-canvas": 10,
    "shifted": 18,
    "block-causal": 18,
    "shifted-blocks": 36,
    "known-first": 18,
    **dict.fromkeys(FAMILIES, 18),
}
CIRCUMSTANCES = ("two steps in flight", "few slots and pages", "arriving one by one, lanes watched")
IN_PARTS = "logits in parts"
LONGER = "requests longer than a step"
FOR_BLOCKS = ("prefix sharing", "prompts in chunks", LONGER)  # networks with exact keys alone can do these
TABLES = [
    *itertools.product(("tiny-llada", "tiny-sdar", *TRIED), CIRCUMSTANCES),
    *itertools.product(("whole-canvas", "block-causal"), (IN_PARTS,)),
    *itertools.product(("tiny-sdar", "block-causal", "shifted-blocks", "known-first", "next-token"), FOR_BLOCKS),
]


@pytest.mark.parametrize(("name", "number"), [(name, number) for name in NETWORKS for number in range(PARTS)])
def test_an_answer_is_the_same_alone_and_batched_with_others(name: str, number: int) -> None:
    some = part(list(cases(name))[number::PARTS], ONE_IN.get(name, 1), seed=name)
    assert_same(some, (network(name).run([cases(name)[case]])[0] for case in some), together(name))


@pytest.mark.parametrize(("name", "circumstance"), TABLES)
def test_an_answer_is_the_same_in_any_circumstances(
    name: str, circumstance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = network(name)
    some = part(cases(name), 20, seed=f"{name} {circumstance}")
    specs, options = [cases(name)[case] for case in some], dict[str, Any]()
    if circumstance == "two steps in flight":
        options["halving"] = TWO_IN_FLIGHT
    elif circumstance == IN_PARTS:
        monkeypatch.setattr(pack, "LOGIT_ROWS", 20)
    elif circumstance == "few slots and pages":
        options["limits"] = net.tight
    elif circumstance == "prefix sharing":
        options["limits"] = replace(net.limits, prefix_sharing=not net.limits.prefix_sharing)
    elif circumstance == LONGER:
        size = max(8, net.pattern.block_size)
        limits = options["limits"] = replace(net.limits, prefill_tokens=size, step_tokens=max(40, 3 * size))
        # Lanes and a look-ahead that are cut bring another answer.
        requests = {case: cases(name)[case].request(0, net.pattern) for case in cases(name)}
        found = [case for case, request in requests.items() if request._can_be_cut(limits, net.pattern)]
        found = [case for case in found if "block_length" not in cases(name)[case].params]
        some = part([case for case in found if requests[case].decoder.lookahead == 0], 5, seed=name)
        specs = [cases(name)[case] for case in some]
    elif circumstance == "prompts in chunks":
        options["limits"] = replace(net.limits, prefill_tokens=max(5, net.pattern.block_size))
    else:
        specs, options["arrive_every"] = [replace(spec, watched=True, diffusing=True) for spec in specs], 1
    answers = net.run(specs, **options)
    assert_same(some, answers, together(name))
    if circumstance.endswith("watched"):
        assert all(answer.events for answer in answers)
        assert all(len(answer.canvases) == len(answer.events) for answer in answers)


def test_the_table_has_all_that_it_says() -> None:
    """Otherwise the tests above would prove less than they seem to."""
    known = {(spec.decoder, *spec.params.items()) for name in SMALL for spec in cases(name).values()}
    assert known >= {(decoder, *params.items()) for decoder, params in VARIANTS}
    assert {decoder for decoder, *_ in known} == {*DECODERS} - {*CANVASES_ONLY}  # tests/models/test_denoising.py
    for name in SMALL:
        if network(name).pattern.autoregressive:  # it has one decoder, whose lane never forks
            continue
        specs, answers = cases(name).values(), together(name).values()
        assert {spec.max_tokens for spec in specs} >= set(network(name).lengths)
        for parameter in PARAMETERS.values():
            given = [all(getattr(spec, field) == value for field, value in parameter.items()) for spec in specs]
            assert sum(given) >= (2 if network(name).pattern.known_first else 3), parameter
        assert sum(answer.forks for answer in answers) > 3
        few = 3 if network(name).pattern.known_first else 1  # it has a part of the decoders
        assert sum(spec.constraint is not None for spec in specs) > 15 // few
        assert sum(len(spec.suffix) > 0 for spec in specs) > 10 // few or network(name).pattern.bounded
        assert sum(spec.template is not None for spec in specs) > 5 // few or network(name).pattern.bounded
    assert sum(answer.forks for answer in together("tiny-llada").values()) > 8
    assert sum(answer.cached_tokens for answer in together("tiny-sdar").values()) >= 144


def test_another_seed_gives_another_answer() -> None:
    answers = [cases("tiny-llada")[case] for case in cases("tiny-llada") if "story" in case][:1]
    seeds = [replace(answers[0], sampling=replace(answers[0].sampling, temperature=1.0, seed=n)) for n in range(4)]
    assert len({tuple(answer.canvas) for answer in network("tiny-llada").run(seeds)}) == 4


@pytest.mark.parametrize("pattern", SMALL.values(), ids=SMALL)
def test_a_network_refuses_decoders_that_do_not_suit_it_by_name(pattern: AttentionPattern) -> None:
    refusals = {decoder: refusal(decoder, pattern) for decoder in DECODERS}
    for decoder, message in refusals.items():
        if message is not None:
            with pytest.raises(ParamError, match=message):
                resolve(decoder, {}, 16, pattern)
    refused = sum(message is not None for message in refusals.values())
    assert 0 < refused < (len(DECODERS) if pattern.autoregressive else len(DECODERS) / 2)
