"""Fast-dLLM v2's block cache: within a block only the sub-block is computed, and sees the block as of its whole pass.

A step computes the whole block while the first position of its sub-block is open, and in the first step of the block.
After that it computes the sub-block, which sees stale keys of the rest of the block. A full block is computed once more
with its final tokens, so keys and values of finished blocks are exact.

Source: arXiv 2509.26328; `use_block_cache` of the published generate.
"""

from __future__ import annotations

from ..params import Params
from .base import CachePolicy, ComputeRange, Progress, RequestExtent

NONE = -1


class Block(CachePolicy):
    NAME = "block"
    reads_canvas = True

    def __init__(self, params: Params) -> None:
        self._sub_block = params.integer("sub_block_length")
        self._settled: int | None = None  # nothing has been computed
        self._cached = NONE  # the end of the block that has had a whole pass

    @property
    def keeps_prompt(self) -> bool:
        return True

    def compute_range(self, extent: RequestExtent) -> ComputeRange:
        canvas, start = extent.canvas, extent.first - extent.first % self._sub_block
        opens = start >= canvas.origin and canvas.tokens[start - canvas.origin] == canvas.mask_id
        if self._settled is None or self._cached != extent.end or opens:
            return ComputeRange(self._settled or 0, extent.end, extent.end)
        return ComputeRange(start, start + self._sub_block, extent.end)

    def computed(self, range_: ComputeRange, extent: RequestExtent, progress: Progress) -> None:
        self._settled, self._cached = extent.frontier, extent.end
