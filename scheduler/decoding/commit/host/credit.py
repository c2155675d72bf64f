"""CreditDecoding: tokens that a position has proposed again and again need less certainty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from ....contract import Doubles, Floats, Ints
from ...lane_tree import Role
from ...params import Params, Range, Values
from ..base import CommitDecision, HostRuleDefaults, Longs, StepView

LIKELY = 8  # tokens of a position whose credit counts
SLOTS = 4  # tokens of a position that have credit; the one with least gives way
SLACK = 1e-5  # what is so close to the best commits with it, where nothing passes


class Credit(HostRuleDefaults):
    """A position's likeliest token earns its probability to the power `credit_gamma` in every call, after all credit
    there has shrunk by `credit_beta`; a token's probability then counts times (1 + credit) to the power `credit_alpha`,
    over all tokens made to sum to 1. The likeliest by that commits at `threshold`; where none in the leftmost lane
    does, the best.

    Source: arXiv 2510.06133; inclusionAI/dInfer, CreditThresholdParallelDecoder. The authors keep credit of the whole
    vocabulary, here the tokens with most have it, and it counts while they are among the likeliest. Drawn tokens and
    those that stand in for an end token stay what they are, with the probability that credit gives them. dInfer ends
    an answer with the block of its first end token: `early_stop` "block".
    """

    PARAMS: Mapping[str, Values] = {
        "credit_alpha": Range(0.0, 10.0),
        "credit_beta": Range(0.0, 1.0),
        "credit_gamma": Range(0.0, 10.0),
    }
    ranks = LIKELY

    def __init__(self, threshold: float, alpha: float, beta: float, gamma: float, length: int) -> None:
        self._threshold, self._alpha, self._beta, self._gamma = threshold, alpha, beta, gamma
        self._ids: Ints = np.full((length, SLOTS), -1, np.int32)
        self._credit: Floats = np.zeros((length, SLOTS), np.float32)

    @classmethod
    def of(cls, knobs: Params, length: int) -> Self:
        alpha, beta, gamma = (knobs.number(knob) for knob in ("credit_alpha", "credit_beta", "credit_gamma"))
        return cls(knobs.number("threshold"), alpha, beta, gamma, length)

    def choose(self, view: StepView) -> CommitDecision:
        """Look-ahead behind the lanes earns nothing: there was no credit before a block began."""
        first, open_ = view.lane_slices[0].here, view.open
        at = np.flatnonzero(open_[view.lanes])
        ids, credit = self._earn(view.positions[at], view.ranked[at, 0], view.logprobs[at, 0])
        tokens, confidence = view.tokens.copy(), np.zeros(len(view.tokens))
        tokens[at], confidence[at] = _fused(view, at, ids, (1.0 + credit) ** self._alpha)
        bar = np.full(len(tokens), self._threshold)
        bar[first] = min(self._threshold, np.where(open_[first], confidence[first], -np.inf).max() - SLACK)
        return view.commit(view.at_least(confidence - bar, 0.0), tokens)

    def _earn(self, positions: Ints, best: Ints, logprobs: Doubles) -> tuple[Ints, Floats]:
        """The tokens that have credit now, and theirs: both [n, slots]."""
        ids, credit = self._ids[positions], self._credit[positions] * np.float32(self._beta)
        same = ids == best[:, None]
        again, row = same.any(1), np.arange(len(positions))
        slot = np.where(again, same.argmax(1), credit.argmin(1))
        credit[row, slot] = np.where(again, credit[row, slot], 0.0) + np.exp(logprobs * self._gamma)
        ids[row, slot] = best
        self._ids[positions], self._credit[positions] = ids, credit
        return ids, credit


def _fused(view: StepView, at: Longs, ids: Ints, gain: Floats) -> tuple[Ints, Doubles]:
    """What may commit `at` [n] these positions, and its probability once that of `ids` [n, slots] counts times
    `gain`."""
    ranked, weight = view.ranked[at], np.exp(view.logprobs[at])
    tokens, confidence = view.tokens[at], view.confidence[at]
    total = 1.0 - weight.sum(1)
    weight *= _looked_up(ranked, ids, gain)
    total += weight.sum(1)
    if any(part.lane.role is Role.REFINE for part in view.lane_slices):
        weight[view.ends[ranked] & ~view.may_end[at, None]] = 0.0
    moves = tokens == ranked[:, 0]
    if not moves.all():
        confidence *= _looked_up(tokens[:, None], ids, gain)[:, 0]
    place = (np.arange(len(ranked)), weight.argmax(1))
    return np.where(moves, ranked[place], tokens), np.where(moves, weight[place], confidence) / total


def _looked_up(tokens: Ints, ids: Ints, gain: Floats) -> Floats:
    """The gain of each of `tokens` [n, any], where `ids` [n, slots] have it, else 1."""
    same = tokens[:, :, None] == ids[:, None, :]
    found: Floats = 1 + np.matmul(same.astype(np.float32), gain[:, :, None] - 1)[:, :, 0]
    return found
