"""d3LLM's cache: a finished block's keys and values are kept some calls later; until then, calls are full passes.

Of the blocks finished from the left on, those not cached yet wait `cache_delay` calls, and the call that ends the wait
computes them for the last time. While some wait, and every `refresh_interval` calls but for one that ends a wait,
everything is computed anew; any other call begins where the cache ends, and computes all that lies behind. The prompt
is the first block. With a delay that no answer lasts it is no cache; with 0 a block is cached by the next call, as in
D2F. `delayed` is another cache, which goes by token.

Source: arXiv 2601.07568; hao-ai-lab/d3LLM d3llm_llada_generate_util.py, generate_multi_block_kv_cache, with the delay
of its evaluation. There, of blocks that finish in one call each waits for the one before, here they wait together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Self

from ..params import Params, Range, Values
from .base import Blind, ComputeRange, Progress, RequestExtent


class Waiting(NamedTuple):
    """Blocks up to the absolute position `end` are finished, which call `since` was the first to see."""

    end: int
    since: int


class Finished(Blind):
    keeps_prompt = False

    DEFAULTS: Mapping[str, object] = {"cache_delay": 1, "refresh_interval": 10_000}
    PARAMS: Mapping[str, Values] = {
        "cache_delay": Range(0, 1_000_000, whole=True),
        "refresh_interval": Range(1, 1_000_000, whole=True),
    }

    def __init__(self, delay: int, interval: int) -> None:
        self._delay, self._interval = delay, interval
        self._call = 1  # the next one
        self._cached = 0  # positions
        self._waiting = Waiting(0, 0)  # nobody, if its end is cached

    @classmethod
    def of(cls, knobs: Params) -> Self:
        return cls(knobs.integer("cache_delay"), knobs.integer("refresh_interval"))

    def compute_range(self, reach: RequestExtent) -> ComputeRange:
        waiting = self._wait(reach)
        waits = waiting.end > self._cached
        if not self._ripe(waiting) and (waits or self._call % self._interval == 0):
            return ComputeRange(0, reach.end, reach.end, refresh=self._cached > 0)
        return ComputeRange(self._cached, reach.end, reach.end)

    def computed(self, window: ComputeRange, reach: RequestExtent, progress: Progress) -> None:
        waiting = self._wait(reach)
        if self._ripe(waiting):
            self._cached, waiting = waiting.end, Waiting(reach.first, self._call)
        self._waiting = waiting
        self._call += 1

    def _wait(self, reach: RequestExtent) -> Waiting:
        """Who waits in the next call: one who did, or what has been finished meanwhile; the prompt always was."""
        if self._waiting.end > self._cached:
            return self._waiting
        return Waiting(reach.first, self._call if self._call > 1 else 0)

    def _ripe(self, waiting: Waiting) -> bool:
        return waiting.end > self._cached and self._call - waiting.since >= self._delay
