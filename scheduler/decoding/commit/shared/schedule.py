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
        block = block_of(params, length)
        steps = params["steps"]
        return cls(block, block if steps is None else params.integer("steps") // -(-length // block))

    def quota(self, forward: int) -> int:
        """Positions that the lane's forward number `forward` must commit."""
        least, more = divmod(self.block, self.forwards)
        return max(1, least + (min(forward, self.forwards - 1) < more))


def block_of(params: Params, length: int) -> int:
    """Positions of a block, at most those of the canvas, which has one block if the decoder has no `block_length`."""
    size = params.get("block_length")
    return min(length, size) if isinstance(size, int) else length


def doublings(count: int) -> int:
    """The exponent of the highest power of 2 up to `count`."""
    return count.bit_length() - 1
