"""EOSER and ASS: end tokens count less while a block is young, and forwards commit ever more of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from ...lane_tree import Lane
from ...params import Choice, Params, Range, doublings
from ..base import CommitDecision, HostCommitRule, Lanes, StepView
from ..segments import Longs
from ..shared.schedule import Schedule, quotas


class Eoser(HostCommitRule):
    """The most probable positions of a lane commit, as many as the quota of an even schedule of `steps` forwards. End
    tokens count `end_weight` of their probability in a block's first forward, and linearly more in each later one.

    Source: arXiv 2509.23924; yjyddq/EOSER-ASS-RL eval/generate.py, eoser_generate. The authors count forwards within
    the block but divide by those of the whole canvas, so with several blocks end tokens never count in full:
    `end_ramp` "canvas". "block" divides by the block's. They mean one end token, here all that the model has.
    """

    NAME = "eoser"
    SOURCE = "arXiv 2509.23924; yjyddq/EOSER-ASS-RL eval/generate.py"
    DEFAULTS = {"steps": None, "end_weight": 0.4, "end_ramp": "canvas"}
    PARAMS = {"end_weight": Range(0.0, 1.0), "end_ramp": Choice(("canvas", "block"))}

    def __init__(self, params: Params, length: int) -> None:
        self._end_weight, self._schedule = params.number("end_weight"), Schedule.of(params, length)
        blocks = 1 if params["end_ramp"] == "block" else -(-length // self._schedule.block)
        self._forwards = self._schedule.forwards * blocks

    @classmethod
    def choose(cls, rules: Sequence[Self], view: StepView) -> CommitDecision:
        lanes = view.lanes
        weights = [rule._weight(lane) for rule, lane in zip(lanes.owners(rules), lanes.lanes, strict=True)]
        weight = lanes.spread(np.array(weights, np.float64))
        score = view.confidence * np.where(view.ends[view.tokens], weight, 1.0)
        return view.commit(lanes.top(score, view.open, cls._quotas(rules, lanes)))

    def _weight(self, lane: Lane) -> float:
        """The share of its probability that an end token in a lane counts."""
        return self._end_weight + (1.0 - self._end_weight) * min(1.0, self._progress(lane))

    def _progress(self, lane: Lane) -> float:
        return lane.steps / (self._forwards - 1) if self._forwards > 1 else 1.0

    @classmethod
    def _quotas(cls, rules: Sequence[Self], lanes: Lanes) -> Longs:
        """[lanes] the positions that commit."""
        return quotas([rule._schedule for rule in rules], lanes)


class Ass(Eoser):
    """As `Eoser`, but a lane's forwards commit 1, 2, 4, ... positions. Of S forwards, where 2^S is the highest power of
    2 within the lane's length, the last takes all that is left. End tokens count `end_weight` of their probability, and
    in forward i = 0, 1, ... the share (2^(i+1) - 1) / 2^S of the rest in addition. Where blocks grow (`Growing`), S is
    the canvas's and i goes on from one block to the next.

    Source: as `Eoser`, eoser_ass_generate; with `end_weight` 1, ass_generate.
    """

    NAME = "ass"
    DEFAULTS = {"end_weight": 0.01}
    PARAMS = {"end_weight": Range(0.0, 1.0)}

    def __init__(self, params: Params, length: int) -> None:
        self._end_weight = params.number("end_weight")
        self._canvas = length if "block_count" in params else None  # if blocks grow along it

    def _progress(self, lane: Lane) -> float:
        forward, forwards = self._turn(lane)
        return (2.0 ** (min(forward, forwards) + 1) - 1.0) / 2.0**forwards

    @classmethod
    def _quotas(cls, rules: Sequence[Self], lanes: Lanes) -> Longs:
        owners = zip(lanes.owners(rules), lanes.lanes, strict=True)
        return np.array([rule._quota(lane) for rule, lane in owners], np.intp)

    def _quota(self, lane: Lane) -> int:
        forward, forwards = self._turn(lane)
        return lane.end - lane.start if forward >= forwards - 1 else 1 << forward

    def _turn(self, lane: Lane) -> tuple[int, int]:
        """The number of this forward, and of all. Those before a block that grows have filled 2^i - 1 positions."""
        if self._canvas is None:
            return lane.steps, doublings(lane.end - lane.start)
        return doublings(lane.start + 1) + lane.steps, doublings(self._canvas)
