"""Options of one token each are scored by the first forward of the answer, which stays the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from asynclane.models.checkpoint.registry import EMBEDDED
from asynclane.scheduler import Constraint, Halving, Preferences, Request, Scheduler, StepPlan, Update
from asynclane.scheduler.decoding.registry import DECODERS
from asynclane.server.structured.grammar import Grammars, Wanted

from ..support.cases import UNGUIDED
from ..support.driver import CAUSAL_ONLY, LIMITS, TWO_IN_FLIGHT, Spec
from ..support.likelihood import Setting
from ..support.scale import part

PROMPT = "Tom has 12 eggs and finds 11 more. Say a letter."
TEXTS = ("A", "B", "C")
LENGTH = 32
# Those that do not choose among candidates, or are for other networks.
NOT_GUIDED = {*UNGUIDED, *CAUSAL_ONLY, "fast-dllm-v2", "renoise", "tccf", "wedlm"}
CASES = [("tiny-llada", name) for name in part([name for name in DECODERS if name not in NOT_GUIDED], 6)]
CASES += [(name, decoder) for name in ("tiny-sdar", "tiny-dream") for decoder in ("asynclane", "fast-dllm")]


@dataclass(frozen=True, slots=True)
class Choosing:
    """A network, a prompt, and the tokens of which the answer is one."""

    network: Setting
    prompt: np.ndarray
    tokens: np.ndarray
    constraint: Callable[[], Constraint]

    def request(self, number: int, decoder: str, options: np.ndarray, seed: int = 0) -> Request:
        spec = Spec(self.prompt[seed:].tolist(), LENGTH, decoder, ranks=0, constraint=self.constraint)
        return replace(spec.request(number, self.network.pattern), candidates=options)

    def run(self, requests: list[Request], halving: Halving | None = None) -> tuple[list[Update], list[StepPlan]]:
        """The last update of each request, and all steps."""
        network = self.network
        scheduler = Scheduler(LIMITS, network.text.vocabulary, halving=halving, pattern=network.pattern)
        for request in requests:
            scheduler.add(request)
        last: dict[int, Update] = {}
        plans: list[StepPlan] = []
        while (plan := scheduler.plan()) is not None:
            plans.append(plan)
            last.update((one.request_id, one) for one in scheduler.commit(network.runner.execute(plan)))
        scheduler.check_integrity()
        return [last[request.id] for request in requests], plans


@cache
def choosing(name: str) -> Choosing:
    network = Setting(EMBEDDED / name)
    grammars = Grammars(network.text)
    grammar = asyncio.run(grammars.compile(Wanted("guided_choice", choice=TEXTS)))
    tokens = np.concatenate([network.ids(text) for text in TEXTS])
    assert len(tokens) == len(TEXTS)
    return Choosing(network, network.ids(PROMPT), tokens, lambda: grammars.constraint(grammar))


@pytest.mark.parametrize(("name", "decoder"), CASES)
def test_the_first_forward_scores_them_as_the_network_does_and_the_answer_stays(name: str, decoder: str) -> None:
    given = choosing(name)
    (found,), (first, *_) = given.run([given.request(0, decoder, given.tokens)])
    ((plain,), _) = given.run([given.request(0, decoder, given.tokens[:0])])
    assert (found.tokens.tolist(), found.outcome, found.stats) == (plain.tokens.tolist(), plain.outcome, plain.stats)
    assert found.stats.forwards == 1
    assert plain.candidate_logprobs is None
    assert found.candidate_logprobs is not None
    after = first.rows[0].visible - len(given.prompt) - 1
    direct = [given.network.direct(given.prompt, given.tokens[at : at + 1], after)[0] for at in range(len(TEXTS))]
    np.testing.assert_allclose(found.candidate_logprobs, direct, atol=1e-4)
    assert found.tokens.tolist() == [given.tokens[np.argmax(direct)]]


@pytest.mark.parametrize("halving", [None, TWO_IN_FLIGHT])
def test_they_are_the_same_alone_and_batched_with_others(halving: Halving | None) -> None:
    """Every second request has none."""
    chosen = choosing("tiny-llada")
    given = [chosen.tokens[: 0 if number % 2 else 3] for number in range(6)]
    requests = [chosen.request(number, "asynclane", options, number) for number, options in enumerate(given)]
    together, plans = chosen.run(requests, halving)
    assert max(len(plan.rows) for plan in plans) > 2
    for request, other in zip(requests, together, strict=True):
        ((alone,), _) = chosen.run([replace(request, constraint=chosen.constraint())])
        assert alone.tokens.tolist() == other.tokens.tolist()
        if len(request.candidates):
            assert alone.candidate_logprobs is not None
            assert other.candidate_logprobs is not None
            np.testing.assert_array_equal(alone.candidate_logprobs, other.candidate_logprobs)


def test_a_bias_is_a_part_of_their_scores() -> None:
    chosen = choosing("tiny-llada")
    biased = Preferences(bias={int(chosen.tokens[0]): 3.0})
    request = chosen.request(0, "asynclane", chosen.tokens)
    requests = [request, replace(request, id=1, preferences=biased, constraint=chosen.constraint())]
    (one, two), _ = chosen.run(requests)
    assert one.candidate_logprobs is not None
    assert two.candidate_logprobs is not None
    shift = np.diff(one.candidate_logprobs) - np.diff(two.candidate_logprobs)
    assert shift == pytest.approx([3.0, 0.0], abs=1e-3)
