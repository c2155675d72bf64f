"""Biases of a request's logits: penalties, a bias for single tokens, bans of end tokens.

All of them change the logits of some tokens, so one operation of the device serves them all. Penalties count every
committed token of the answer as the step finds it. Tokens that commit in one step do not affect each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .contract import Bias, Doubles, Floats, Ints
from .decoding.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Preferences:
    """Biases that a request sets.

    `presence` is subtracted from the logit of each token in the answer, and `frequency` once for each time it is there.
    `repetition` divides the logits above 0 of all tokens in prompt and answer, and multiplies the others, before that
    (CTRL, arXiv 1909.05858). `bias` is added to the logits of its tokens; minus infinity bans a token. End tokens and
    `stops` are banned at the first `min_tokens` positions, and with `ignore_end` end tokens are banned everywhere.
    """

    presence: float = 0.0
    frequency: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)
    ignore_end: bool = False
    min_tokens: int = 0
    stops: tuple[int, ...] = ()
    repetition: float = 1.0

    @property
    def penalty(self) -> str:
        """The parameter of a request that sets a penalty; empty if none does."""
        if self.presence:
            return "presence_penalty"
        if self.frequency:
            return "frequency_penalty"
        return "repetition_penalty" if self.repetition != 1 else ""


NEUTRAL = Preferences()


class Biasing:
    """The biases of one request, whose `canvas` after the `prompt` has masks where its answer will be. What else is in
    it was given, as prompt and `suffix` were."""

    def __init__(
        self, preferences: Preferences, vocabulary: Vocabulary, prompt: Ints, canvas: Ints, suffix: Ints
    ) -> None:
        ends = vocabulary.ends
        always = {**preferences.bias, **dict.fromkeys(ends if preferences.ignore_end else (), -np.inf)}
        early = {**always, **dict.fromkeys((*ends, *preferences.stops), -np.inf)}
        start, end = len(prompt), len(prompt) + len(canvas)
        first = min(start + preferences.min_tokens, end)
        bounds = ((start, first, early), (first, end, always))
        constant = [Bias(a, b, *_columns(deltas)) for a, b, deltas in bounds if a < b]
        self._mask_id = vocabulary.mask_id
        self._preferences = preferences
        self._own = canvas == vocabulary.mask_id
        self._constant = tuple(bias for bias in constant if len(bias.tokens))
        repetition = preferences.repetition
        given = np.concatenate((prompt, canvas[~self._own], suffix)) if repetition != 1 else prompt[:0]
        self._tables: list[_Table] = []
        if preferences.penalty:
            self._tables = [_Table.of(bias, np.unique(given), repetition) for bias in constant]

    def at(self, canvas: Ints, end: int) -> tuple[Bias, ...]:
        """The biases of a step that finds the answer in `canvas`, before `end`."""
        if not self._tables:
            return self._constant
        answer = canvas[:end][self._own[:end]]
        tokens, times = np.unique(answer[answer != self._mask_id], return_counts=True)
        penalties: Doubles = -self._preferences.presence - self._preferences.frequency * times.astype(np.float64)
        biases = (table.with_answer(tokens, penalties, self._preferences.repetition) for table in self._tables)
        return tuple(bias for bias in biases if len(bias.tokens))


class _Table(NamedTuple):
    """The `tokens` [n] of a bias and those that were given, ascending, so that no step sorts a prompt again."""

    start: int
    end: int
    tokens: Ints
    deltas: Doubles
    factors: Floats

    @classmethod
    def of(cls, bias: Bias, given: Ints, repetition: float) -> _Table:
        """`given` [any] are the tokens that `repetition` counts from the start."""
        tokens = np.union1d(bias.tokens, given)
        deltas, factors = np.zeros(len(tokens)), np.ones(len(tokens), np.float32)
        deltas[tokens.searchsorted(bias.tokens)] = bias.deltas
        factors[tokens.searchsorted(given)] = repetition
        return cls(bias.start, bias.end, tokens, deltas, factors)

    def with_answer(self, tokens: Ints, penalties: Doubles, repetition: float) -> Bias:
        """The bias with the `penalties` [m] of an answer's `tokens` [m], each once, and the `repetition` of these."""
        places = np.minimum(self.tokens.searchsorted(tokens), len(self.tokens) - 1)
        known = self.tokens[places] == tokens if len(self.tokens) else np.zeros(len(tokens), np.bool_)
        deltas, factors = self.deltas.copy(), self.factors.copy()
        deltas[places[known]] += penalties[known]
        factors[places[known]] = repetition
        new = tokens[~known]
        each = np.concatenate((self.tokens, new))
        total = np.concatenate((deltas, penalties[~known])).astype(np.float32)
        if repetition == 1:
            return Bias(self.start, self.end, each, total)
        return Bias(self.start, self.end, each, total, np.append(factors, np.full(len(new), repetition, np.float32)))


def _columns(deltas: Mapping[int, float]) -> tuple[Ints, Floats]:
    return np.fromiter(deltas, np.int32, len(deltas)), np.fromiter(deltas.values(), np.float32, len(deltas))
