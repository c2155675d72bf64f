"""Decoders that compute several rows of one request in a step: what they promise about the answer."""

from __future__ import annotations

from typing import Any

import pytest

from asynclane.models.exec.runner import Runner
from asynclane.scheduler import ParamError, Vocabulary, resolve

from ..support.cases import CHATS, network
from ..support.driver import Answer, Spec, run
from ..support.golden import PROMPTS, WHOLE
from ..support.scale import LONG, part

LENGTH = 24
BRANCHING = ("blockbatch", "blockbatch-dream", "freedave", "lopa", "psd")
COUNTED = {"freedave": "llada", "psd": "fast-dllm"}  # with the decoder whose answers they give


def answers(runner: Runner, vocabulary: Vocabulary, decoder: str, **params: Any) -> list[tuple[list[int], int]]:
    specs = [Spec(prompt, LENGTH, decoder, WHOLE | params) for prompt in PROMPTS[:1]]
    return [(answer.canvas.tolist(), answer.steps) for answer in run(runner, vocabulary, specs)]


@pytest.mark.parametrize("cache", [pytest.param("none", marks=LONG), "dual"])
def test_freedave_answers_as_one_token_a_forward_does_in_fewer_forwards(
    cache: str, runner: Runner, vocabulary: Vocabulary
) -> None:
    drafting = answers(runner, vocabulary, "freedave", cache=cache, block_length=16)
    plain = answers(runner, vocabulary, "llada", cache=cache, block_length=16)
    assert [tokens for tokens, _ in drafting] == [tokens for tokens, _ in plain]
    assert all(3 * forwards < 2 * LENGTH for _, forwards in drafting)


@pytest.mark.parametrize(("model", "cache"), [("tiny-sdar", "prefix"), ("tiny-sdar", "none"), ("tiny-llada", "dual")])
def test_psd_answers_as_a_threshold_does_in_fewer_forwards(model: str, cache: str) -> None:
    """Block-causal networks, whose keys are exact, and others with any cache."""
    given, one_in = {**WHOLE, "threshold": 0.99}, 8 if model == "tiny-llada" else 2
    drafted, plain = (
        network(model).run([Spec(prompt, 40, decoder, {**given, "cache": cache}) for prompt in part(CHATS, one_in)])
        for decoder in ("psd", "fast-dllm")
    )
    assert [answer.canvas.tolist() for answer in drafted] == [answer.canvas.tolist() for answer in plain]
    assert sum(answer.steps for answer in drafted) < sum(answer.steps for answer in plain)


def test_one_row_is_the_decoder_without_branches(runner: Runner, vocabulary: Vocabulary) -> None:
    kinds = [("freedave", {"draft_steps": 1}, "llada"), ("psd", {"draft_steps": 1}, "fast-dllm")]
    for one, params, plain in part([*kinds, ("lopa", {"branches": 1}, "fast-dllm")], 3):
        assert answers(runner, vocabulary, one, **params) == answers(runner, vocabulary, plain, cache="dual"), one


@pytest.mark.parametrize("decoder", BRANCHING)
def test_log_probabilities_are_reported_or_refused(decoder: str, runner: Runner, vocabulary: Vocabulary) -> None:
    spec = Spec(PROMPTS[0], 8, decoder, WHOLE, ranks=2)
    if decoder not in COUNTED:
        with pytest.raises(ParamError, match=f"'{decoder}'.*logprobs") as refused:
            run(runner, vocabulary, [spec])
        assert refused.value.param == "decoder"
        return
    plain = Spec(PROMPTS[0], 8, COUNTED[decoder], {"cache": "dual", **WHOLE}, ranks=2)
    drafted, counted = (answer.scores for answer in run(runner, vocabulary, [spec, plain]))
    assert drafted is not None
    assert counted is not None
    assert drafted.logprobs.tolist() == counted.logprobs.tolist()
    assert drafted.ranked.tolist() == counted.ranked.tolist()


def test_a_rule_with_rows_of_its_own_is_for_its_own_decoder() -> None:
    for rule in BRANCHING:
        with pytest.raises(ParamError, match="rule must be one of"):
            resolve("asynclane", {"rule": rule}, 64)


@pytest.mark.parametrize(("name", "decoder"), [("whole-canvas", "blockbatch"), ("shifted", "blockbatch-dream")])
def test_branches_that_share_the_prompt_take_fewer_pages_and_compute_it_once(name: str, decoder: str) -> None:
    """Without another full pass that changes nothing else."""
    net, params = network(name), {"branches": 3, "smallest_block": 4, "early_stop": False}
    prompt, size = (net.prompts[0] * 40)[:70], net.limits.page_size

    def answer(shares: bool, refresh_size: int) -> Answer:
        given = {**params, "share_prompt": shares, "refresh_size": refresh_size}
        return net.run([Spec(prompt, LENGTH, decoder, given)])[0]

    once, shared = (answer(shares, 1000) for shares in (False, True))
    assert (shared.canvas.tolist(), shared.steps) == (once.canvas.tolist(), once.steps)
    assert shared.computed_tokens == once.computed_tokens
    again, spared = (answer(shares, 8) for shares in (False, True))
    assert spared.computed_tokens / spared.steps < again.computed_tokens / again.steps
    required = [
        Spec(prompt, LENGTH, decoder, {**params, "share_prompt": shares})
        .request(0, net.pattern)
        .facts(net.vocabulary, net.limits, net.pattern, measured=False)
        .required
        for shares in (False, True)
    ]
    kept = len(prompt) - net.pattern.logit_shift
    (_, own_pages, own_tokens), (_, pages, tokens) = required
    assert (own_pages - pages, own_tokens - tokens) == (2 * (kept // size), 2 * kept)
