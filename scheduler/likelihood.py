"""Likelihoods: the tokens that a request gives to be scored, and the forwards that score them.

Two estimators of log p(x | prompt), for x of n tokens. The chain is a sum over tokens: token i is predicted from the
prompt and the tokens before it, while it and all later positions are masked. This takes one row for each token; chains
that begin alike share rows. An autoregressive network sees no later position, so one row is enough for the rest of a
chain. Monte Carlo is that of LLaDA's evaluation (Nie et al., arXiv 2502.09992, equation 6): of n tokens l are masked,
drawn without replacement, and the masked ones add n / l times their log-probabilities; the mean over all samples is
unbiased for the same bound as in training.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from .contract import MOST_RANKS, Doubles, Floats, Ints, Scores
from .decoding.boundaries import Longs
from .logprobs import Scored

OWN = -1  # in the place of a given token: the network's own


class Scoring(NamedTuple):
    """Tokens to score after a prompt, instead of an answer: chains, one after another in `tokens` [n], of so many
    `lengths` [chains], 1 at least. With `sums` one score of each chain is reported, else those of all tokens. If it
    `proposes`, the network's own token after the only chain comes, too. With `samples` the estimator is Monte Carlo, of
    one chain; 0: the chain's. At most `rows` forwards are computed in one step."""

    tokens: Ints
    lengths: Longs
    sums: bool = False
    proposes: bool = False
    samples: int = 0
    rows: int = 1


class Probe(NamedTuple):
    """One forward. The canvas begins with `shown` tokens, and masks follow. It finds the log-probability of each token
    `given` [n] at the canvas `positions` [n], ascending. With a `weight`, that of `given[found]`, `found` [m], is added
    to the scores of the `entries` [m]: these number the tokens of all chains."""

    shown: Ints
    positions: Longs
    given: Ints
    entries: Longs
    found: Longs
    weight: float = 1.0


class Likelihood:
    """The scores of one request. Its probes are made when a step needs them: a request may give 100,000 tokens, and no
    step may wait for all of their probes."""

    def __init__(self, scoring: Scoring, mask_id: int, seed: int, ranks: int, autoregressive: bool = False) -> None:
        self._tokens, self._proposes, self._sampled = scoring.tokens, scoring.proposes, scoring.samples > 0
        self._at_once = autoregressive
        self._starts: Longs = np.cumsum(scoring.lengths) - scoring.lengths
        self._lengths = scoring.lengths
        self._coming = _samples(scoring, mask_id, seed) if scoring.samples else self._prefixes()
        self._made = deque[Probe]()  # not computed so far
        count = len(self._tokens) + self._proposes
        self._ranks = min(ranks, MOST_RANKS)
        self._logprobs: Doubles = np.zeros(count)
        self._steps: Ints = np.zeros(count, np.int32)
        self._token_ranks: Ints = np.zeros(count, np.int32)
        self._ranked: Ints = np.zeros((count, self._ranks), np.int32)
        self._ranked_logprobs: Floats = np.zeros((count, self._ranks), np.float32)
        self._proposal = 0
        self.left = scoring.samples or count  # forwards to come, at most: chains may share some

    @property
    def over(self) -> bool:
        return not self.next_probes(1)

    def next_probes(self, most: int) -> Sequence[Probe]:
        """The next forwards, `most` at most."""
        self._made += islice(self._coming, max(0, most - len(self._made)))
        return list(islice(self._made, most))

    def take(self, proposals: Ints, scores: Scores, part: slice, step: int) -> None:
        """The next probes were computed in a `step`: `proposals` [n] are those at all their positions, in order, and
        `part` of the `scores` belongs to them."""
        start = 0
        while start < len(proposals):
            probe = self._made.popleft()
            entries, here = probe.entries, probe.found + (part.start + start)
            self._logprobs[entries] += probe.weight * scores.chosen[here].astype(np.float64)
            self._steps[entries] = step
            if scores.token_ranks is not None:
                self._token_ranks[entries] = scores.token_ranks[here]
            if self._ranks:
                self._ranked[entries] = scores.ranked[here, : self._ranks]
                self._ranked_logprobs[entries] = scores.logprobs[here, : self._ranks]
            if probe.given[0] == OWN:
                self._proposal = int(proposals[start])
            start += len(probe.positions)
            self.left -= 1 if self._sampled else len(entries)

    def scored(self) -> tuple[Ints, Scored]:
        """All tokens [n], those of one chain after another, and their scores."""
        own = np.array([self._proposal] if self._proposes else [], np.int32)
        logprobs = self._logprobs.astype(np.float32)
        scores = Scored(logprobs, self._steps, self._ranked, self._ranked_logprobs, self._token_ranks)
        return np.concatenate((self._tokens, own)), scores

    def sums(self) -> Doubles:
        """The log-probability of each chain [chains]."""
        chains = np.repeat(np.arange(len(self._lengths)), self._lengths)
        found: Doubles = np.bincount(chains, self._logprobs, len(self._lengths)).astype(np.float64)
        return found

    def _prefixes(self) -> Iterator[Probe]:
        """A probe for each prefix that chains have, with all tokens that follow it."""
        all_chains = np.flatnonzero(self._lengths)
        stack = [(all_chains, 0)] if len(all_chains) else []  # chains that begin alike, and how many tokens they share
        while stack:
            chains, size = stack.pop()
            first = self._starts[chains[0]]
            shown = self._tokens[first : first + size]
            entries = self._starts[chains] + size
            if len(chains) == 1 and self._at_once:
                end = int(self._lengths[chains[0]])
                given, entries = self._tokens[first + size : first + end], np.arange(first + size, first + end)
                yield Probe(
                    self._tokens[first : first + end - 1], np.arange(size, end), given, entries, entries - entries[0]
                )
                continue
            if len(chains) == 1:  # mostly
                yield Probe(shown, np.array([size]), self._tokens[entries], entries, np.zeros(1, np.int64))
                if self._lengths[chains[0]] > size + 1:
                    stack.append((chains, size + 1))
                continue
            given, found = np.unique(self._tokens[entries], return_inverse=True)
            yield Probe(shown, np.full(len(given), size), given, entries, found)
            goes_on = self._lengths[chains] > size + 1
            chains, found = chains[goes_on], found[goes_on]
            order = np.argsort(found, kind="stable")
            alike = np.split(chains[order], np.flatnonzero(np.diff(found[order])) + 1)
            stack += [(each, size + 1) for each in reversed(alike) if len(each)]
        if self._proposes:
            size = len(self._tokens)
            at = np.array([size])
            yield Probe(self._tokens, at, np.array([OWN], np.int32), at, np.zeros(1, np.int64))


def _samples(scoring: Scoring, mask_id: int, seed: int) -> Iterator[Probe]:
    """The samples of Monte Carlo. As in LLaDA's code the numbers of masks are spread evenly from a random start."""
    chain, samples = scoring.tokens, scoring.samples
    size, draws = len(chain), np.random.default_rng(seed)
    first = int(draws.integers(size))
    for number in range(samples):
        masked = 1 + (first + round(number * size / samples)) % size
        positions = np.sort(draws.permutation(size)[:masked])
        shown = chain.copy()
        shown[positions] = mask_id
        weight = size / masked / samples
        yield Probe(shown, positions, chain[positions], positions, np.arange(masked), weight)
