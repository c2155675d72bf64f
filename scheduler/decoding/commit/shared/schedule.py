"""The positions that a forward of a block must commit, where a decoder fixes the number of forwards (`steps`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from ...params import Params
from ..base import Lanes
from ..segments import Longs


@dataclass(frozen=True, slots=True)
class Schedule:
    """The positions of a block spread evenly over `forwards`, the first ones taking the remainder, as in LLaDA. A lane
    that needs more forwards continues with the quota of the last one."""

    block: int
    forwards: int

    @classmethod
    def of(cls, params: Params, length: int) -> Self:
        """From `steps`, the forwards of a canvas of `length`, which its blocks divide; None is one for each token."""
        block = params.block_of(length)
        steps = params["steps"]
        return cls(block, block if steps is None else params.integer("steps") // -(-length // block))


def quotas(schedules: Sequence[Schedule], lanes: Lanes) -> Longs:
    """[lanes] the positions that the next forward of each lane must commit, by the schedule [r] of its request."""
    block, forwards = np.array([(one.block, one.forwards) for one in schedules])[lanes.owner].T
    least, more = np.divmod(block, forwards)
    due: Longs = np.maximum(1, least + (np.minimum(lanes.steps, forwards - 1) < more))
    return due
