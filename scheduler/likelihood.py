"""Likelihoods: the tokens that a request gives to be scored, and the forwards that score them.

Two estimators of log p(x | prompt), for x of n tokens. The chain is a sum over tokens: token i is predicted from the
prompt and the tokens before it, while it and all later positions are masked. This takes one row for each token; chains
that begin alike share rows. Monte Carlo is that of LLaDA's evaluation (Nie et al., arXiv 2502.09992, equation 6): of n
tokens l are masked, drawn without replacement, and the masked ones add n / l times their log-probabilities; the mean
over all samples is unbiased for the same bound as in training.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .contract import MOST_RANKS, Doubles, Floats, Ints, Scores
from .decoding.boundaries import Longs
from .logprobs import Scored

OWN = -1  # in the place of a given token: the network's own


class Scoring(NamedTuple):
    """Tokens to score after a prompt, instead of an answer: each of `chains`. If it `proposes`, the network's own token
    after the only chain comes, too. With `samples` the estimator is Monte Carlo, of one chain; 0: the chain's. At most
    `rows` forwards are computed in one step."""

    chains: tuple[Ints, ...]
    proposes: bool = False
    samples: int = 0
    rows: int = 1


class Probe(NamedTuple):
    """One forward. The canvas begins with `shown` tokens, and masks follow. The log-probabilities of the tokens `given`
    [n] at canvas `positions` [n], ascending, are added to the `queries` [n] with a `weight`."""

    shown: Ints
    positions: Longs
    given: Ints
    queries: Longs
    weight: float = 1.0


@dataclass(slots=True)
class _Node:
    """The tokens that follow a prefix, which is `at` tokens long in a `chain`."""

    chain: Ints
    at: int
    queries: dict[int, int] = field(default_factory=dict)
    after: dict[int, _Node] = field(default_factory=dict)


class Likelihood:
    """The scores of one request. `probes` are all of its forwards, in order."""

    def __init__(self, scoring: Scoring, mask_id: int, seed: int, ranks: int) -> None:
        self._chains, self._proposes = scoring.chains, scoring.proposes
        self._entries: list[int] = []  # the query of each token
        probes = _samples(scoring, mask_id, seed) if scoring.samples else self._prefixes()
        self.probes: list[Probe] = list(probes)
        if scoring.samples:
            self._entries = [*range(len(scoring.chains[0]))]
        count = 1 + max((int(probe.queries.max()) for probe in self.probes), default=-1)
        self._ranks = min(ranks, MOST_RANKS)
        self._logprobs: Doubles = np.zeros(count)
        self._steps: Ints = np.zeros(count, np.int32)
        self._places: Ints = np.zeros(count, np.int32)
        self._ranked: Ints = np.zeros((count, self._ranks), np.int32)
        self._ranked_logprobs: Floats = np.zeros((count, self._ranks), np.float32)
        self._proposal = 0
        self.done = 0  # probes

    @property
    def over(self) -> bool:
        return self.done == len(self.probes)

    @property
    def left(self) -> int:
        """Forwards to come."""
        return len(self.probes) - self.done

    def take(self, proposals: Ints, scores: Scores, part: slice, step: int) -> None:
        """The next probes were computed in a `step`: `proposals` [n] are those at all their positions, in order, and
        `part` of the `scores` belongs to them."""
        start = 0
        while start < len(proposals):
            shown, positions, _, queries, weight = self.probes[self.done]
            here = slice(part.start + start, part.start + start + len(positions))
            self._logprobs[queries] += weight * scores.chosen[here].astype(np.float64)
            self._steps[queries] = step
            if scores.places is not None:
                self._places[queries] = scores.places[here]
            self._ranked[queries] = scores.ranked[here, : self._ranks]
            self._ranked_logprobs[queries] = scores.logprobs[here, : self._ranks]
            if self._proposes and len(shown) == len(self._chains[0]):
                self._proposal = int(proposals[start])
            start += len(positions)
            self.done += 1

    def scored(self) -> tuple[Ints, Scored]:
        """All tokens [n], those of one chain after another, and their scores."""
        own = [np.array([self._proposal], np.int32)] if self._proposes else []
        at = np.array(self._entries, np.int64)
        found = self._logprobs[at].astype(np.float32), self._steps[at], self._ranked[at], self._ranked_logprobs[at]
        return np.concatenate((*self._chains, *own)), Scored(*found, self._places[at])

    def _prefixes(self) -> Iterator[Probe]:
        """A probe for each prefix that chains have, with all tokens that follow it."""
        nodes = [_Node(self._chains[0], 0)]
        count = 0
        for chain in self._chains:
            node = nodes[0]
            for at, token in enumerate(chain.tolist()):
                if token not in node.queries:
                    node.queries[token] = count
                    count += 1
                self._entries.append(node.queries[token])
                if at + 1 < len(chain) and token not in node.after:
                    node.after[token] = _Node(chain, at + 1)
                    nodes.append(node.after[token])
                node = node.after.get(token, node)
        if self._proposes:
            self._entries.append(count)
        for node in nodes:
            if node.queries:
                found = [*node.queries], [*node.queries.values()]
                yield _probe(node.chain[: node.at], *found)
        if self._proposes:
            yield _probe(self._chains[0], [OWN], [count])


def _probe(shown: Ints, given: list[int], queries: list[int]) -> Probe:
    positions = np.full(len(given), len(shown), np.int64)
    return Probe(shown, positions, np.array(given, np.int32), np.array(queries, np.int64))


def _samples(scoring: Scoring, mask_id: int, seed: int) -> Iterator[Probe]:
    """The samples of Monte Carlo. As in LLaDA's code the numbers of masks are spread evenly from a random start."""
    (chain,), samples = scoring.chains, scoring.samples
    size, draws = len(chain), np.random.default_rng(seed)
    first = int(draws.integers(size))
    for number in range(samples):
        masked = 1 + (first + round(number * size / samples)) % size
        positions = np.sort(draws.permutation(size)[:masked])
        shown = chain.copy()
        shown[positions] = mask_id
        yield Probe(shown, positions, chain[positions], positions, size / masked / samples)
