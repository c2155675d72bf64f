"""EOSER and ASS: end tokens wait while a block is young, and calls commit ever more of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from ...params import Choice, Params, Range, Values
from ..base import (
    CommitDecision,
    HostRuleDefaults,
    LaneSlice,
    StepView,
    top,
)
from ..shared.schedule import Schedule, doublings


class Eoser(HostRuleDefaults):
    """Of a lane, the most probable positions commit, as many as an even schedule of `steps` calls owes. End tokens
    count `end_weight` of their probability in a block's first call, and more in each, in proportion.

    Source: arXiv 2509.23924; yjyddq/EOSER-ASS-RL eval/generate.py, eoser_generate. The authors count calls within the
    block, but weigh them against those of the whole canvas, so with several blocks end tokens never count in full:
    `end_ramp` "canvas". "block" weighs them against the block's. They mean one end token, here all that the model has.
    """

    PARAMS: Mapping[str, Values] = {"end_weight": Range(0.0, 1.0), "end_ramp": Choice(("canvas", "block"))}

    def __init__(self, schedule: Schedule, end_weight: float, calls: int) -> None:
        self._schedule, self._end_weight, self._calls = schedule, end_weight, calls

    @classmethod
    def of(cls, knobs: Params, length: int) -> Self:
        schedule = Schedule.of(knobs, length)
        blocks = 1 if knobs["end_ramp"] == "block" else -(-length // schedule.block)
        return cls(schedule, knobs.number("end_weight"), schedule.calls * blocks)

    def choose(self, view: StepView) -> CommitDecision:
        chosen = np.zeros(len(view.positions), np.bool_)
        ends = view.ends[view.tokens]
        for part in view.lane_slices:
            here = part.here
            weight = self._end_weight + (1.0 - self._end_weight) * min(1.0, self._progress(part))
            score = view.confidence[here] * np.where(ends[here], weight, 1.0)
            at = here.start + top(score, view.open[here], self._due(part))
            chosen[at] = True
        return view.commit(chosen)

    def _progress(self, part: LaneSlice) -> float:
        return part.lane.steps / (self._calls - 1) if self._calls > 1 else 1.0

    def _due(self, part: LaneSlice) -> int:
        return self._schedule.due(part.lane.steps)


class Ass(Eoser):
    """As `Eoser`, but a lane's calls commit 1, 2, 4, ... positions: of S calls, where 2^S is the highest power of 2
    that the lane holds, the last takes what is left. End tokens count `end_weight` of their probability, and in
    call i = 0, 1, ... the share (2^(i+1) - 1) / 2^S of the rest more. Where blocks grow (`policies.Growing`), S is the
    canvas's and i goes on from one block to the next.

    Source: as `Eoser`, eoser_ass_generate; with `end_weight` 1, ass_generate.
    """

    PARAMS: Mapping[str, Values] = {"end_weight": Range(0.0, 1.0)}

    def __init__(self, end_weight: float, canvas: int | None = None) -> None:
        """`canvas`: its length, if blocks grow along it."""
        self._end_weight, self._canvas = end_weight, canvas

    @classmethod
    def of(cls, knobs: Params, length: int) -> Self:
        if "block_count" not in knobs:
            return cls(knobs.number("end_weight"))
        most = max(1, doublings(length))
        holds = knobs.integer("block_count") <= most
        knobs.require("block_count", holds, f"exceeds the {most} calls that a canvas of {length} (max_tokens) takes")
        return cls(knobs.number("end_weight"), length)

    def _progress(self, part: LaneSlice) -> float:
        call, calls = self._turn(part)
        return (2.0 ** (min(call, calls) + 1) - 1.0) / 2.0**calls

    def _due(self, part: LaneSlice) -> int:
        call, calls = self._turn(part)
        return part.lane.end - part.lane.start if call >= calls - 1 else 1 << call

    def _turn(self, part: LaneSlice) -> tuple[int, int]:
        """Which call this is, and of how many. Those before a block that grows have filled 2^i - 1 positions."""
        lane = part.lane
        if self._canvas is None:
            return lane.steps, doublings(lane.end - lane.start)
        return doublings(lane.start + 1) + lane.steps, doublings(self._canvas)
