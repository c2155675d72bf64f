"""Steps of one row on a checkpoint of any family, whose logits are compared."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import GREEDY, DeviceCommitRule, Ints, Placement, Row, Span, StepPlan

LENGTH = 37
COMMITS_NOTHING = DeviceCommitRule(sure=0, threshold=2.0)
IDS = [7 + 31 * number % 1000 for number in range(LENGTH)]


def row(runner: Runner, slot: int, start: int, end: int) -> Row:
    """Projects the states of `[start, end)`, whichever positions they predict."""
    shift = runner._network.config.logit_shift
    return Row(slot, start, end, end, (Span(start + shift, end + shift, COMMITS_NOTHING),), GREEDY, step=0)


def placed(slot: int, ids: list[int]) -> Placement:
    return Placement(slot, np.array(ids, np.int32), tuple(range(4 * slot, 4 * slot + 4)))


def logits(runner: Runner, ids: list[int], order: Ints | None = None) -> Tensor:
    """Logits of every position, in one row."""
    return runner.logits(StepPlan((placed(0, ids),), (row(runner, 0, 0, len(ids))._replace(order=order),)))
