"""CreditDecoding: tokens that a position has proposed again and again need less confidence."""

from __future__ import annotations

import numpy as np

from ....contract import Doubles, Floats, Ints
from ...lane_tree import Role
from ...params import Params, Range
from ..base import CommitDecision, HostCommitRule, Longs, StepView

LIKELY = 8  # tokens of a position whose credit counts
SLOTS = 4  # tokens of a position that have credit; the one with least credit is replaced
SLACK = 1e-5  # positions this close to the best commit with it, where nothing passes


class Credit(HostCommitRule):
    """In every forward all credit at a position shrinks by `credit_beta`; then its likeliest token earns its
    probability to the power `credit_gamma`. A token's probability counts times (1 + credit) to the power
    `credit_alpha`, normalized over all tokens. The likeliest token by that commits at `threshold`; where none in the
    leftmost lane does, the best.

    Source: arXiv 2510.06133; inclusionAI/dInfer, CreditThresholdParallelDecoder. The authors keep credit of the whole
    vocabulary; here only the tokens with most credit have it, and it counts while they are among the likeliest. Sampled
    tokens and those that replace an end token stay, with the probability that credit gives them. dInfer ends an answer
    with the block of its first end token: `early_stop` "block".
    """

    NAME = "credit"
    SOURCE = "arXiv 2510.06133; inclusionAI/dInfer decoding/parallel_strategy.py"
    DEFAULTS = {"threshold": 0.9, "credit_alpha": 0.7, "credit_beta": 0.8, "credit_gamma": 0.2}
    PARAMS = {"credit_alpha": Range(0.0, 10.0), "credit_beta": Range(0.0, 1.0), "credit_gamma": Range(0.0, 10.0)}
    ranks = LIKELY

    def __init__(self, params: Params, length: int) -> None:
        self._threshold = params.number("threshold")
        self._alpha, self._beta, self._gamma = map(params.number, ("credit_alpha", "credit_beta", "credit_gamma"))
        self._ids: Ints = np.full((length, SLOTS), -1, np.int32)
        self._credit: Floats = np.zeros((length, SLOTS), np.float32)

    def choose(self, view: StepView) -> CommitDecision:
        """The look-ahead earns nothing: there is no credit before a block begins."""
        first, open_ = view.lane_slices[0].here, view.open
        at = np.flatnonzero(open_[view.lanes])
        ids, credit = self._earn(view.positions[at], view.ranked[at, 0], view.logprobs[at, 0])
        tokens, confidence = view.tokens.copy(), np.zeros(len(view.tokens))
        tokens[at], confidence[at] = _fused(view, at, ids, (1.0 + credit) ** self._alpha)
        threshold = np.full(len(tokens), self._threshold)
        threshold[first] = min(self._threshold, np.where(open_[first], confidence[first], -np.inf).max() - SLACK)
        return view.commit(view.at_least(confidence - threshold, 0.0), tokens)

    def _earn(self, positions: Ints, best: Ints, logprobs: Doubles) -> tuple[Ints, Floats]:
        """The tokens that have credit now, and their credit: both [n, slots]."""
        ids, credit = self._ids[positions], self._credit[positions] * np.float32(self._beta)
        same = ids == best[:, None]
        again, row = same.any(1), np.arange(len(positions))
        slot = np.where(again, same.argmax(1), credit.argmin(1))
        credit[row, slot] = np.where(again, credit[row, slot], 0.0) + np.exp(logprobs * self._gamma)
        ids[row, slot] = best
        self._ids[positions], self._credit[positions] = ids, credit
        return ids, credit


def _fused(view: StepView, at: Longs, ids: Ints, gain: Floats) -> tuple[Ints, Doubles]:
    """The tokens that may commit at the indices `at` [n], and their probabilities once those of `ids` [n, slots] count
    times `gain`."""
    ranked, weight = view.ranked[at], np.exp(view.logprobs[at])
    tokens, confidence = view.tokens[at], view.confidence[at]
    total = 1.0 - weight.sum(1)
    weight *= _looked_up(ranked, ids, gain)
    total += weight.sum(1)
    if any(lane.role is Role.REFINE for lane, _, _ in view.lane_slices):
        weight[view.ends[ranked] & ~view.may_end[at, None]] = 0.0
    moves = tokens == ranked[:, 0]
    if not moves.all():
        confidence *= _looked_up(tokens[:, None], ids, gain)[:, 0]
    place = (np.arange(len(ranked)), weight.argmax(1))
    return np.where(moves, ranked[place], tokens), np.where(moves, weight[place], confidence) / total


def _looked_up(tokens: Ints, ids: Ints, gain: Floats) -> Floats:
    """The gain of each of `tokens` [n, any] that is in `ids` [n, slots], else 1."""
    same = tokens[:, :, None] == ids[:, None, :]
    found: Floats = 1 + np.matmul(same.astype(np.float32), gain[:, :, None] - 1)[:, :, 0]
    return found
