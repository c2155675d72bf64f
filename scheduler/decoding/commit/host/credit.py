"""CreditDecoding: tokens that a position has proposed again and again need less confidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from ....contract import Doubles, Floats, Ints
from ...params import Params, Range
from ..base import CommitDecision, HostCommitRule, StepView
from ..segments import Longs, whole_rows

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

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        """The look-ahead earns nothing: there is no credit before a block begins."""
        lanes, open_ = view.lanes, view.open
        numbers = np.array([(rule._threshold, rule._alpha, rule._beta, rule._gamma) for rule in rules])
        kept_ids, kept_credit = [rule._ids for rule in rules], [rule._credit for rule in rules]
        all_ids, all_credit = view.gather(kept_ids), view.gather(kept_credit)
        at = np.flatnonzero(open_ & lanes.inside)
        _, alpha, beta, gamma = numbers.T.take(view.requests.index[at], axis=1)
        found = _Likely(view, at)
        ids, credit, slot = _earned(
            all_ids.take(at, axis=0).T, all_credit.take(at, axis=0).T * beta.astype(np.float32), found, gamma
        )
        tokens, confidence = view.tokens.copy(), np.zeros(len(view.tokens))
        gain = np.float32(1) + ((np.float32(1) + credit) ** alpha.astype(np.float32) - np.float32(1))
        tokens[at], confidence[at] = found.fused(ids, gain, slot)
        threshold = numbers[lanes.owner, 0]
        best = lanes.highest(confidence, open_) - SLACK
        threshold = lanes.spread(np.where(lanes.leftmost, np.minimum(threshold, best), threshold))
        chosen = view.at_least(confidence - threshold, 0.0)
        whole_rows(all_ids)[at], whole_rows(all_credit)[at] = whole_rows(ids.T), whole_rows(credit.T)
        view.scatter(kept_ids, all_ids)
        view.scatter(kept_credit, all_credit)
        return view.commit(chosen, tokens)


def _earned(ids: Ints, credit: Floats, found: _Likely, gamma: Doubles) -> tuple[Ints, Floats, Longs]:
    """The tokens that have credit after this step and their credit, both [slots, n], and the slot [n] that has earned:
    that of the likeliest token, or else the one with least credit."""
    best, rows = found.ranked[0], np.arange(found.size)
    slot, least = np.zeros(found.size, np.intp), credit[0]
    for number in range(1, SLOTS):
        less = credit[number] < least
        slot, least = np.where(less, number, slot), np.where(less, credit[number], least)
    known = ids == best
    for number in reversed(range(SLOTS)):
        slot = np.where(known[number], number, slot)
    ids, credit = np.ascontiguousarray(ids), np.ascontiguousarray(credit)
    earned = np.where(ids[slot, rows] == best, credit[slot, rows], np.float32(0)) + np.exp(found.logprobs[0] * gamma)
    ids[slot, rows], credit[slot, rows] = best, earned
    return ids, credit, slot


class _Likely:
    """The likeliest tokens at the indices `at` [n] of a view, and their weights; both [ranks, n]."""

    def __init__(self, view: StepView, at: Longs) -> None:
        self.view, self.at, self.size = view, at, len(at)
        self.ranked = np.ascontiguousarray(view.ranked.take(at, axis=0).T)
        self.logprobs = np.ascontiguousarray(view.logprobs.take(at, axis=0).T, np.float64)

    def fused(self, ids: Ints, gain: Floats, slot: Longs) -> tuple[Ints, Doubles]:
        """The tokens [n] that may commit, and their probabilities once those of `ids` [slots, n] count times `gain`.
        The likeliest token's is in `slot` [n]."""
        view, at, ranked, rows = self.view, self.at, self.ranked, np.arange(self.size)
        weight = np.exp(self.logprobs)
        total = 1.0 - _sum(weight)
        weight[0] *= gain[slot, rows]
        refine = view.lanes.spread(view.lanes.refine, outside=False)[at]
        unsure = refine.copy()  # where another token may be the likeliest now
        for own, more in zip(ids, gain, strict=True):
            rank, row = np.divmod(np.flatnonzero(ranked[1:] == own), self.size)
            weight[rank + 1, row] *= more[row]
            unsure[row] = True
        total += _sum(weight)
        banned = np.flatnonzero(refine)  # no end token may come there
        rank, row = np.nonzero(view.ends[ranked.take(banned, axis=1)])
        weight[rank, banned[row]] = 0.0
        place = np.zeros(self.size, np.intp)
        place[unsure] = weight.compress(unsure, axis=1).argmax(0)
        tokens, confidence = view.tokens[at], view.confidence[at]
        stays = np.flatnonzero(tokens != ranked[0])
        likely, probability = ranked[place, rows], weight[place, rows]
        likely[stays], probability[stays] = tokens[stays], confidence[stays]
        for own, more in zip(ids[:, stays], gain[:, stays], strict=True):
            probability[stays] *= np.where(own == tokens[stays], more, np.float32(1))
        return likely, probability / total


def _sum(columns: Doubles) -> Doubles:
    """The sums [n] of `columns` [ranks, n], in the order in which numpy sums a row of them."""
    if len(columns) == LIKELY:  # by pairs
        columns = columns[::2] + columns[1::2]
        columns = columns[::2] + columns[1::2]
    total: Doubles = np.add.reduce(columns)
    return total
