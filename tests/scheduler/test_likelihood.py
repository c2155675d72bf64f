"""Chains of tokens become forwards: one for each beginning that they have, made when a step needs it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asynclane.scheduler.contract import Scores
from asynclane.scheduler.likelihood import OWN, Likelihood, Probe, Scoring

MASK = 99
CHAINS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=12)


def likelihood(chains: list[list[int]], **fields: bool) -> Likelihood:
    tokens = np.array([token for chain in chains for token in chain], np.int32)
    return Likelihood(Scoring(tokens, np.array([*map(len, chains)]), **fields), MASK, seed=0, ranks=0)


def score(probe: Probe) -> np.ndarray:
    """A number for each token that depends on all that comes before it."""
    return np.array([-float(hash((*probe.shown.tolist(), token)) % 1000) for token in probe.given.tolist()])


def compute(found: Likelihood, at_once: int) -> list[Probe]:
    computed: list[Probe] = []
    while not found.over:
        probes = found.next_probes(at_once)
        assert found.next_probes(at_once) == probes  # a step that has to wait is planned again
        chosen = np.concatenate([score(probe) for probe in probes]).astype(np.float32)
        none = np.zeros((len(chosen), 0))
        scores = Scores(chosen, none.astype(np.int32), none.astype(np.float32))
        assert found.left >= 1
        found.take(np.full(len(chosen), 7, np.int32), scores, slice(0, len(chosen)), 0)
        computed += probes
    assert found.left == 0
    return computed


@given(chains=CHAINS, at_once=st.integers(1, 5))
def test_chains_share_what_they_begin_with_and_each_token_is_scored_after_those_before_it(
    chains: list[list[int]], at_once: int
) -> None:
    found = likelihood(chains)
    computed = compute(found, at_once)
    beginnings = [tuple(probe.shown.tolist()) for probe in computed]
    assert sorted(beginnings) == sorted({tuple(chain[:at]) for chain in chains for at in range(len(chain))})
    expected = [[-float(hash(tuple(chain[: at + 1])) % 1000) for at in range(len(chain))] for chain in chains]
    tokens, scores = found.scored()
    assert tokens.tolist() == [token for chain in chains for token in chain]
    assert scores.logprobs.tolist() == [score for chain in expected for score in chain]
    assert found.sums().tolist() == [sum(chain) for chain in expected]


def test_the_networks_own_token_comes_last_even_where_no_other_is_given() -> None:
    for chain in ([], [1, 2]):
        found = likelihood([chain], proposes=True)
        assert compute(found, 2)[-1].given.tolist() == [OWN]
        assert found.scored()[0].tolist() == [*chain, 7]


def test_no_request_makes_all_its_forwards_at_once() -> None:
    """A thousand options of a hundred tokens would keep the engine for a second."""
    rng = np.random.default_rng(0)
    found = likelihood(rng.integers(0, 50, (1000, 100)).tolist())
    assert len(found.next_probes(8)) == 8
    assert len(found._made) == 8
    assert found.left == 100_000
