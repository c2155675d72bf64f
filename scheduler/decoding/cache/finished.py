"""d3LLM's cache: a finished block's keys and values are kept some forwards later; until then forwards are full passes.

Of the blocks finished from the left on, those not cached yet wait `cache_delay` forwards, and the forward that ends the
wait computes them for the last time. While some wait, and every `refresh_interval` forwards except one that ends a
wait, everything is recomputed; any other forward begins where the cache ends, and computes everything after it. The
prompt is the first block. With a delay longer than any answer it is no cache; with 0 a block is cached by the next
forward, as in D2F. `delayed` is another cache, which goes by token.

Source: arXiv 2601.07568; hao-ai-lab/d3LLM d3llm_llada_generate_util.py, generate_multi_block_kv_cache, with the delay
of its evaluation. There, of blocks that finish in one forward each waits for the one before; here they wait together.
"""

from __future__ import annotations

from typing import NamedTuple

from ..params import Params, Range
from .base import CachePolicy, ComputeRange, Progress, RequestExtent


class Waiting(NamedTuple):
    """Blocks up to the absolute position `end` are finished, since forward `since`."""

    end: int
    since: int


class Finished(CachePolicy):
    NAME = "finished"
    DEFAULTS = {"cache_delay": 1, "refresh_interval": 10_000}
    PARAMS = {"cache_delay": Range(0, 1_000_000, whole=True), "refresh_interval": Range(1, 1_000_000, whole=True)}

    def __init__(self, params: Params) -> None:
        self._delay, self._interval = params.integer("cache_delay"), params.integer("refresh_interval")
        self._forward = 1  # the next one
        self._cached = 0  # positions
        self._waiting = Waiting(0, 0)  # none, if its end is cached

    def compute_range(self, extent: RequestExtent) -> ComputeRange:
        waiting = self._wait(extent)
        waits = waiting.end > self._cached
        if not self._ripe(waiting) and (waits or self._forward % self._interval == 0):
            return ComputeRange(0, extent.end, extent.end, refresh=self._cached > 0)
        return ComputeRange(self._cached, extent.end, extent.end)

    def computed(self, range_: ComputeRange, extent: RequestExtent, progress: Progress) -> None:
        waiting = self._wait(extent)
        if self._ripe(waiting):
            self._cached, waiting = waiting.end, Waiting(extent.first, self._forward)
        self._waiting = waiting
        self._forward += 1

    def _wait(self, extent: RequestExtent) -> Waiting:
        """The blocks that wait in the next forward: those that did, or those finished since. The prompt always was."""
        if self._waiting.end > self._cached:
            return self._waiting
        return Waiting(extent.first, self._forward if self._forward > 1 else 0)

    def _ripe(self, waiting: Waiting) -> bool:
        return waiting.end > self._cached and self._forward - waiting.since >= self._delay
