"""T2M: committed tokens that the network has come to doubt become masks again, and others take their place."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Self

import numpy as np

from ....contract import Doubles
from ...params import Choice, Params, Range
from ..base import CommitDecision, HostCommitRule, StepView

UNKNOWN = -np.inf  # the probability of a token in the forward before, where it was not there: it has lost nothing


class TokenToMask(HostCommitRule):
    """Open positions of `threshold` confidence commit, or else the best. In the same forward committed tokens of the
    block are taken back: by `remask` "low_prob" those of less than `remask_threshold` probability, by "swap" those
    where another token has more than that, by "drop" those that have lost more than that since the forward before. Each
    position at most `remask_times`, and in a forward at most `remask_share` of those that it could be, the worst first,
    but one in any case. A full block stays until a forward changes nothing. From `edit_steps` forwards after the first
    one that begins with a full block, nothing is taken back any more.

    Source: arXiv 2604.18738; synsis/remasked_DLM modeling_remask.py. The defaults are the paper's main setting. The
    code's own thresholds are 0.5, 0.9 ("swap") and 0.3 ("drop"), with 5 times for each position.
    """

    NAME = "t2m"
    SOURCE = "arXiv 2604.18738; synsis/remasked_DLM remask/modeling_remask.py"
    DEFAULTS = {
        "threshold": 0.7,
        "remask": "low_prob",
        "remask_threshold": 0.3,
        "remask_times": 1,
        "remask_share": 0.25,
        "edit_steps": 16,
    }
    PARAMS = {
        "remask": Choice(("low_prob", "swap", "drop")),
        "remask_threshold": Range(0.0, 1.0),
        "remask_times": Range(0, 4096, whole=True),
        "remask_share": Range(0.0, 1.0),
    }
    revises = True
    rescores = True

    def __init__(self, params: Params, length: int) -> None:
        self._threshold, self._doubt = params.number("threshold"), params.number("remask_threshold")
        self._remask, self._share = params.text("remask"), params.number("remask_share")
        self._times, self._edit_steps = params.integer("remask_times"), params.integer("edit_steps")
        self._block, self._spent = -1, 0  # the lane, and its forwards from the first that began with all of it full
        self._taken = np.zeros(length, np.intp)  # by canvas position: how often it was taken back
        self._before = np.full(length, UNKNOWN)  # the probability of its token in the last forward

    @property
    def kind(self) -> Hashable:
        return self._remask

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        open_, requests, before = view.open, view.requests, [rule._before for rule in rules]
        blocks = [lane.id for lane in view.lanes.lanes]
        spent = np.array([rule._spent * (rule._block == block) for rule, block in zip(rules, blocks, strict=True)])
        spent += (spent > 0) | ~requests.any(open_)
        edit_steps, taken = np.array([rule._edit_steps for rule in rules]), [rule._taken for rule in rules]
        chosen = view.at_least(view.confidence, view.each([rule._threshold for rule in rules]))
        probability = np.exp(view.rescored.astype(np.float64))
        score = cls._doubts(rules[0]._remask, view, probability, view.gather(before))
        may = ~open_ & (view.gather(taken) < view.each([rule._times for rule in rules]))
        may &= view.each((spent <= edit_steps) & (edit_steps > 0))
        doubted = may & (score > view.each([rule._limit for rule in rules]))
        most = (np.array([rule._share for rule in rules]) * requests.count(~open_)).astype(np.intp)
        back = requests.top(score, doubted, np.maximum(most, 1))
        tokens = np.where(back, view.mask_id, np.where(chosen, view.tokens, view.canvas_tokens))
        full = ~requests.any(tokens == view.mask_id)
        stays = full & requests.any(chosen) & (spent < edit_steps)
        probability = np.where(chosen, view.confidence, np.where(back | open_, UNKNOWN, probability))
        view.scatter(taken, view.gather(taken) + back)
        view.scatter(before, probability)
        for rule, block, forwards in zip(rules, blocks, spent.tolist(), strict=True):
            rule._block, rule._spent = block, forwards
        return CommitDecision(tokens, stays=stays)

    @property
    def _limit(self) -> float:
        """The doubt above which a token is taken back."""
        return -self._doubt if self._remask == "low_prob" else self._doubt

    @staticmethod
    def _doubts(remask: str, view: StepView, probability: Doubles, before: Doubles) -> Doubles:
        """[n] the doubt about each committed token, whose `probability` [n] in the forward before was `before` [n]."""
        if remask == "low_prob":
            return -probability
        if remask == "drop":
            return before - probability
        return np.where(view.tokens == view.canvas_tokens, -np.inf, view.confidence)
