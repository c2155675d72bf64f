"""The positions that a forward of a block must commit, where a decoder fixes the number of forwards (`steps`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ...params import Params


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

    def quota(self, forward: int) -> int:
        """Positions that the lane's forward number `forward` must commit."""
        least, more = divmod(self.block, self.forwards)
        return max(1, least + (min(forward, self.forwards - 1) < more))
