"""Which tokens an answer is pushed towards or away from: penalties, a bias for each token, where it may not end.

All of it is added to logits, so one operation of the device serves them all. Penalties look at the answer as the step
finds it, at all of its committed positions, those of lanes behind an unfinished one too; what commits in one step does
not push within this step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .contract import Bias, Floats, Ints
from .decoding.vocabulary import END, Vocabulary


@dataclass(frozen=True, slots=True)
class Preferences:
    """`presence` is taken from the logits of tokens that the answer holds, `frequency` as often as it holds them;
    `bias` is added to those of some tokens, minus infinity bans. No end token comes before `min_tokens` others, nor
    do `stops`; with `ignore_end` none ever comes."""

    presence: float = 0.0
    frequency: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)
    ignore_end: bool = False
    min_tokens: int = 0
    stops: tuple[int, ...] = ()


NEUTRAL = Preferences()
Counts = tuple[npt.NDArray[np.int32], npt.NDArray[np.intp]]  # tokens, each once, and how often the answer holds it


class Biasing:
    """The biases of one request."""

    def __init__(self, preferences: Preferences, vocabulary: Vocabulary) -> None:
        ends = np.flatnonzero(vocabulary.classes & END).tolist()
        self._mask_id = vocabulary.mask_id
        self._penalties = preferences.presence, preferences.frequency
        self._always = dict(preferences.bias) | _banned(ends if preferences.ignore_end else ())
        self._early = _banned([*ends, *preferences.stops]) if preferences.min_tokens else {}
        self._early_tokens = preferences.min_tokens

    def of(self, prompt_tokens: int, canvas: Ints, end: int) -> tuple[Bias, ...]:
        """What to add at absolute positions, in a step that finds `canvas` with the answer before `end`."""
        counts: Counts | None = None
        if any(self._penalties):
            held = canvas[:end]
            counts = np.unique(held[held != self._mask_id], return_counts=True)
        first = prompt_tokens + min(self._early_tokens, len(canvas))
        spans = (
            (prompt_tokens, first, self._always | self._early),
            (first, prompt_tokens + len(canvas), self._always),
        )
        found = (Bias(start, stop, *self._sum(deltas, counts)) for start, stop, deltas in spans if start < stop)
        return tuple(bias for bias in found if len(bias.tokens))

    def _sum(self, deltas: Mapping[int, float], counts: Counts | None) -> tuple[Ints, Floats]:
        """Each token once, with all that is added to it."""
        tokens = np.fromiter(deltas, np.int32, len(deltas))
        amounts = np.fromiter(deltas.values(), np.float32, len(deltas))
        if counts is None:
            return tokens, amounts
        held, times = counts
        presence, frequency = self._penalties
        each, where = np.unique(np.concatenate((tokens, held)), return_inverse=True)
        total = np.bincount(where, np.concatenate((amounts, -presence - frequency * times)))
        return each, total.astype(np.float32)


def _banned(tokens: Iterable[int]) -> dict[int, float]:
    return dict.fromkeys(tokens, -np.inf)
