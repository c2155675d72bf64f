"""PC-Sampler: positions commit by their probability, from the left, and rare tokens before frequent ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from ....contract import Doubles
from ...params import Params, Range
from ..base import CommitDecision, HostCommitRule, StepView
from ..shared.schedule import Schedule, quotas

UNSEEN = 1e-9  # is added to each frequency
LEAST = 1e-300  # a score whose logarithm is still a number


class PcSampler(HostCommitRule):
    """The best positions of a lane commit, as many as the quota of an even schedule of `steps` forwards. The score of
    the position at offset i is exp(-`position_decay` i) times its information, -p ln f, but at most `score_cap`: p is
    the probability of its token, and f the token's relative frequency in texts of the model's kind. So end tokens and
    full stops come late. Scores are compared by their logarithms, since far positions would all count 0.

    Source: arXiv 2508.13021; NEUIR/PC-Sampler. The authors decay by 0.25, by 0 for Sudoku and by 1 for Countdown, and
    their block is the whole canvas. Frequencies are those of the model's `token_frequencies.json`.
    """

    NAME = "pc-sampler"
    SOURCE = "arXiv 2508.13021; NEUIR/PC-Sampler"
    DEFAULTS = {"steps": None, "position_decay": 0.25, "score_cap": 10.0}
    PARAMS = {"position_decay": Range(0.0, 100.0), "score_cap": Range(0.001, 1000.0)}
    weighs_tokens = True

    def __init__(self, params: Params, length: int) -> None:
        self._decay, self._cap = params.number("position_decay"), params.number("score_cap")
        self._schedule = Schedule.of(params, length)

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        lanes = view.lanes
        information = -view.confidence * np.log(view.frequencies[view.tokens] + UNSEEN)
        capped = np.minimum(information, view.each([rule._cap for rule in rules]))
        offset = view.positions - lanes.spread([lane.start for lane in lanes.lanes])
        score: Doubles = np.log(np.maximum(capped, LEAST)) - view.each([rule._decay for rule in rules]) * offset
        return view.commit(lanes.top(score, view.open, quotas([rule._schedule for rule in rules], lanes)))
