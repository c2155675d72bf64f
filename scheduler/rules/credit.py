"""CreditDecoding: tokens that a position has proposed again and again need less certainty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from ..contract import MOST_RANKS, Doubles, Floats, Ints
from ..knobs import Knobs, Range, Values
from .base import Bools, Evidence, Remembering, Verdict

SLOTS = 8  # tokens of a position that have credit; the one with least gives way
SLACK = 1e-5  # what is so close to the best commits with it, where nothing passes


class Credit(Remembering):
    """A position's likeliest token earns its probability to the power `credit_gamma` in every call, after all credit
    there has shrunk by `credit_beta`; a token's probability then counts times (1 + credit) to the power `credit_alpha`,
    over all tokens made to sum to 1. The likeliest by that commits at `threshold`; where none in the leftmost lane
    does, the best.

    Source: arXiv 2510.06133; inclusionAI/dInfer, CreditThresholdParallelDecoder. The authors keep credit of the whole
    vocabulary, here the tokens with most have it, and it counts while they are among the likeliest. Drawn tokens and
    those that stand in for an end token stay what they are, with the probability that credit gives them. dInfer ends
    an answer with the block of its first end token: `early_stop` "block".
    """

    KNOBS: Mapping[str, Values] = {
        "credit_alpha": Range(0.0, 10.0),
        "credit_beta": Range(0.0, 1.0),
        "credit_gamma": Range(0.0, 10.0),
    }
    ranks = MOST_RANKS

    def __init__(self, threshold: float, alpha: float, beta: float, gamma: float, length: int) -> None:
        self._threshold, self._alpha, self._beta, self._gamma = threshold, alpha, beta, gamma
        self._ids: Ints = np.full((length, SLOTS), -1, np.int32)
        self._credit: Floats = np.zeros((length, SLOTS), np.float32)

    @classmethod
    def of(cls, knobs: Knobs, length: int) -> Self:
        alpha, beta, gamma = (knobs.number(knob) for knob in ("credit_alpha", "credit_beta", "credit_gamma"))
        return cls(knobs.number("threshold"), alpha, beta, gamma, length)

    def choose(self, evidence: Evidence) -> Verdict:
        """Look-ahead behind the lanes earns nothing: there was no credit before a block began."""
        lanes = slice(0, evidence.parts[-1].here.stop)
        self._earn(evidence.positions[lanes], evidence.ranked[lanes, 0], evidence.logprobs[lanes, 0])
        tokens, confidence = self._fused(evidence, lanes)
        first, open_ = evidence.parts[0].here, evidence.open
        bar = np.full(len(tokens), self._threshold)
        bar[first] = min(self._threshold, np.where(open_[first], confidence[first], -np.inf).max() - SLACK)
        return evidence.commit(evidence.at_least(confidence - bar, 0.0), tokens)

    def _earn(self, positions: Ints, best: Ints, logprobs: Doubles) -> None:
        ids, credit = self._ids[positions], self._credit[positions] * np.float32(self._beta)
        same = ids == best[:, None]
        slot = np.where(same.any(1), same.argmax(1), credit.argmin(1))
        row = np.arange(len(positions))
        kept = np.where(same.any(1), credit[row, slot], 0.0)
        ids[row, slot], credit[row, slot] = best, kept + np.exp(logprobs * self._gamma)
        self._ids[positions], self._credit[positions] = ids, credit

    def _fused(self, evidence: Evidence, lanes: slice) -> tuple[Ints, Doubles]:
        """What may commit, and its probability with credit; the look-ahead has none of either."""
        ranked, likely = evidence.ranked[lanes], np.exp(evidence.logprobs[lanes])
        ids, credit = self._ids[evidence.positions[lanes]], self._credit[evidence.positions[lanes]]
        gain = (1.0 + credit.astype(np.float64)) ** self._alpha
        factor = _looked_up(ranked, ids, gain)
        total = 1.0 + (likely * (factor - 1.0)).sum(1)
        weight = np.where(self._barred(evidence, lanes), 0.0, likely * factor)
        place = weight.argmax(1)
        row = np.arange(len(place))
        own = evidence.tokens[lanes]
        moves = own == ranked[:, 0]
        kept = evidence.confidence[lanes] * _looked_up(own[:, None], ids, gain)[:, 0]
        tokens, confidence = evidence.tokens.copy(), np.zeros(len(evidence.tokens))
        tokens[lanes] = np.where(moves, ranked[row, place], own)
        confidence[lanes] = np.where(moves, weight[row, place], kept) / total
        return tokens, confidence

    def _barred(self, evidence: Evidence, lanes: slice) -> Bools:
        """[n, ranks] end tokens where none may come."""
        barred: Bools = evidence.ends[evidence.ranked[lanes]] & ~evidence.may_end[lanes, None]
        return barred


def _looked_up(tokens: Ints, ids: Ints, gain: Doubles) -> Doubles:
    """The gain of each of `tokens` [n, any], where `ids` [n, slots] have it, else 1."""
    found = np.ones(tokens.shape)
    for slot in range(ids.shape[1]):
        np.copyto(found, gain[:, slot, None], where=tokens == ids[:, slot, None])
    return found
