"""Biases of a request's logits: penalties, a bias for single tokens, bans of end tokens.

All of them change the logits of some tokens, so one operation of the device serves them all. Penalties count every
committed token of the answer as the step finds it. Tokens that commit in one step do not affect each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from .contract import Bias, Floats, Ints
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
        given = (prompt, canvas[~self._own], suffix) if preferences.repetition != 1 else (prompt[:0],)
        self._given = np.unique(np.concatenate(given))  # tokens that repetition counts
        self._all = constant
        self._constant = tuple(bias for bias in constant if len(bias.tokens))

    def at(self, canvas: Ints, end: int) -> tuple[Bias, ...]:
        """The biases of a step that finds the answer in `canvas`, before `end`."""
        presence, frequency = self._preferences.presence, self._preferences.frequency
        repetition = self._preferences.repetition
        if not presence and not frequency and repetition == 1:
            return self._constant
        answer = canvas[:end][self._own[:end]]
        tokens, times = np.unique(answer[answer != self._mask_id], return_counts=True)
        penalties = -presence - frequency * times
        biases = (_sum(bias, tokens, penalties, self._given, repetition) for bias in self._all)
        return tuple(bias for bias in biases if len(bias.tokens))


def _columns(deltas: Mapping[int, float]) -> tuple[Ints, Floats]:
    return np.fromiter(deltas, np.int32, len(deltas)), np.fromiter(deltas.values(), np.float32, len(deltas))


def _sum(bias: Bias, tokens: Ints, penalties: Floats, given: Ints, repetition: float) -> Bias:
    """A bias with the penalties of an answer's `tokens` added, and the `repetition` of them and of those given."""
    each, where = np.unique(np.concatenate((bias.tokens, tokens, given)), return_inverse=True)
    added = np.concatenate((bias.deltas, penalties, np.zeros(len(given))))
    total = np.bincount(where, added).astype(np.float32)
    if repetition == 1:
        return Bias(bias.start, bias.end, each, total)
    repeated = np.zeros(len(each), np.bool_)
    repeated[where[len(bias.tokens) :]] = True
    return Bias(bias.start, bias.end, each, total, np.where(repeated, repetition, 1).astype(np.float32))
