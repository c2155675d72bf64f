"""How many positions a call of a block owes where a method says how many calls there are in all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ...params import ParamError, Params


@dataclass(frozen=True, slots=True)
class Schedule:
    """A block's positions spread evenly over `calls`, the first calls taking the remainder, as LLaDA does; a lane that
    needs more calls than that goes on with what the last one owed."""

    block: int
    calls: int

    @classmethod
    def of(cls, knobs: Params, length: int) -> Self:
        """For the knob `steps`, the calls of a canvas of `length`; None is one for each token."""
        block = min(length, knobs.integer("block_length")) if isinstance(knobs.get("block_length"), int) else length
        blocks = -(-length // block)
        if knobs["steps"] is None:
            return cls(block, block)
        steps = knobs.integer("steps")
        if steps % blocks:
            raise ParamError("steps", f"steps must be a multiple of the canvas's {blocks} blocks, not {steps}")
        return cls(block, steps // blocks)

    def due(self, call: int) -> int:
        """Positions that the lane's call number `call` owes."""
        least, more = divmod(self.block, self.calls)
        return max(1, least + (min(call, self.calls - 1) < more))


def doublings(count: int) -> int:
    """The exponent of the highest power of 2 up to `count`."""
    return count.bit_length() - 1
