"""Biases of a request's logits: penalties, a bias for single tokens, bans of end tokens.

All of them are added to logits, so one operation of the device serves them all. Penalties count every committed token
of the answer as the step finds it. Tokens that commit in one step do not affect each other.
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
    `bias` is added to the logits of its tokens; minus infinity bans a token. End tokens and `stops` are banned at the
    first `min_tokens` positions, and with `ignore_end` end tokens are banned everywhere.
    """

    presence: float = 0.0
    frequency: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)
    ignore_end: bool = False
    min_tokens: int = 0
    stops: tuple[int, ...] = ()


NEUTRAL = Preferences()


class Biasing:
    """The biases of one request, whose canvas has `length` positions after `prompt_tokens`."""

    def __init__(self, preferences: Preferences, vocabulary: Vocabulary, prompt_tokens: int, length: int) -> None:
        ends = vocabulary.ends
        always = {**preferences.bias, **dict.fromkeys(ends if preferences.ignore_end else (), -np.inf)}
        early = {**always, **dict.fromkeys((*ends, *preferences.stops), -np.inf)}
        start, end = prompt_tokens, prompt_tokens + length
        first = min(start + preferences.min_tokens, end)
        bounds = ((start, first, early), (first, end, always))
        constant = [Bias(a, b, *_columns(deltas)) for a, b, deltas in bounds if a < b]
        self._mask_id = vocabulary.mask_id
        self._presence, self._frequency = preferences.presence, preferences.frequency
        self._all = constant
        self._constant = tuple(bias for bias in constant if len(bias.tokens))

    def at(self, canvas: Ints, end: int) -> tuple[Bias, ...]:
        """The biases of a step that finds the answer in `canvas`, before `end`."""
        if not self._presence and not self._frequency:
            return self._constant
        answer = canvas[:end]
        tokens, times = np.unique(answer[answer != self._mask_id], return_counts=True)
        penalties = -self._presence - self._frequency * times
        biases = (Bias(bias.start, bias.end, *_sum(bias, tokens, penalties)) for bias in self._all)
        return tuple(bias for bias in biases if len(bias.tokens))


def _columns(deltas: Mapping[int, float]) -> tuple[Ints, Floats]:
    return np.fromiter(deltas, np.int32, len(deltas)), np.fromiter(deltas.values(), np.float32, len(deltas))


def _sum(bias: Bias, tokens: Ints, penalties: Floats) -> tuple[Ints, Floats]:
    """Each token once, with the sum of its bias and its penalty."""
    each, where = np.unique(np.concatenate((bias.tokens, tokens)), return_inverse=True)
    total = np.bincount(where, np.concatenate((bias.deltas, penalties)))
    return each, total.astype(np.float32)
