"""Captures a whole step as a CUDA graph, once for each shape: a replay costs one launch instead of hundreds.

A plan is padded to the smallest shape that holds it, copied into the static buffer of that shape's graph, and its
result read back in one copy. A shape is captured at its first plan. Graphs share one memory pool, since one runs at a
time; the largest shape is captured at start, so the pool does not grow.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...kernels.attention.tiles import attention_config, fixed_config, tile_queries
from ...scheduler.contract import StepPlan
from ..checkpoint.config import ModelConfig
from ..numerics import Numerics
from .pack import Batch, OptionalInputs, Shape, Tiling, pack_into, projected, unpack

ROW = 64  # positions of a row of the usual length: decides how attention is tiled
IN_FLIGHT = 2  # steps that may be launched before the first is collected
FINEST = 16  # positions between two shapes where a step's time is flat


@dataclass(frozen=True, slots=True)
class Buffers:
    """The memory of one launch until it is collected."""

    host_in: Tensor  # pinned int32 [shape.words]
    host_out: Tensor  # pinned int32 [4 or more, projected]
    started: torch.cuda.Event
    ended: torch.cuda.Event

    @classmethod
    def of(cls, words: int, out: Tensor) -> Buffers:
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        host_in = torch.zeros(words, dtype=torch.int32).pin_memory()
        return cls(host_in, torch.empty(out.shape, dtype=torch.int32).pin_memory(), started, ended)

    def collect(self) -> tuple[np.ndarray, float]:
        self.ended.synchronize()
        return self.host_out.numpy(), self.started.elapsed_time(self.ended) / 1e3


@dataclass(frozen=True, slots=True)
class Captured:
    graph: torch.cuda.CUDAGraph
    device_in: Tensor
    device_out: Tensor  # int32 [4 or more, projected]
    buffers: tuple[Buffers, ...]  # launches take them in turn


class StepGraphs:
    """`compute` maps a batch to int32 [4 or more, N], with the same operations whatever the numbers in it."""

    def __init__(self, compute: Callable[[Batch], Tensor], config: ModelConfig, numerics: Numerics, slots: int) -> None:
        self._compute = compute
        self._config = config
        self._numerics = numerics
        self._slots = slots
        self._captured: dict[Shape, Captured] = {}
        self._launched = 0
        self._shaped: tuple[StepPlan, Shape] | None = None  # the last plan with its shape
        self._pool: Any = None  # torch names the type of a pool only privately

    def captured(self, plan: StepPlan) -> bool:
        """False if the launch of a plan will take seconds, for the capture of its shape."""
        return self.shape_for(plan) in self._captured

    def shape_for(self, plan: StepPlan) -> Shape:
        """The smallest shape that holds a plan."""
        if self._shaped is None or self._shaped[0] is not plan:
            self._shaped = plan, self._shape(plan)
        return self._shaped[1]

    def _shape(self, plan: StepPlan) -> Shape:
        tokens = plan.tokens + -plan.tokens % spacing(plan.tokens)
        # At most eight sizes of the projected part for each size of the whole.
        count = projected(plan)
        count = min(tokens, count + -count % max(FINEST, tokens // 8))
        return Shape(
            tokens=tokens,
            rows=self._rows(plan, tokens),
            projected=count,
            spans=count,  # a span has a position at least
            tiling=self._tiling(tokens),
            projected_tiling=self._tiling(count),
            inputs=OptionalInputs.of(plan).rounded(),
        )

    def _rows(self, plan: StepPlan, tokens: int) -> int:
        """One for each slot, doubled while requests with several rows need more."""
        rows = min(self._slots, tokens)
        while rows < len(plan.rows):
            rows *= 2
        return rows

    def launch(self, plan: StepPlan) -> Callable[[], tuple[np.ndarray, float]]:
        """Start a plan. The function returned waits for its end and returns the result of `compute`, int32
        [4 or more, projected positions of its shape], valid until `IN_FLIGHT` more are launched, and the device's
        seconds."""
        shape = self.shape_for(plan)
        step = self._captured.get(shape) or self._capture(plan, shape)
        buffers = step.buffers[self._launched % IN_FLIGHT]
        pack_into(buffers.host_in.numpy(), plan, shape, self._config.logit_shift)
        buffers.started.record()
        step.device_in.copy_(buffers.host_in, non_blocking=True)
        step.graph.replay()
        buffers.host_out.copy_(step.device_out, non_blocking=True)
        buffers.ended.record()
        self._launched += 1  # last: a launch that fails must not take the turn of one in flight
        return buffers.collect

    def graph(self, plan: StepPlan) -> torch.cuda.CUDAGraph:
        """The graph of a plan that has been launched."""
        return self._captured[self.shape_for(plan)].graph

    def _tiling(self, tokens: int) -> Tiling:
        config = self._config
        of_heads = config.heads, config.kv_heads, config.head_dim, self._numerics.dtype.itemsize
        if self._numerics.fixed:
            chosen = fixed_config(*of_heads)
        else:
            chosen = attention_config(tokens, max(1, tokens // ROW), config.max_model_len, *of_heads)
        return Tiling(chosen, tile_queries(chosen, config.heads, config.kv_heads))

    def _capture(self, plan: StepPlan, shape: Shape) -> Captured:
        words = np.zeros(shape.words, np.int32)
        pack_into(words, plan, shape, self._config.logit_shift)
        device_in = torch.from_numpy(words).cuda()
        batch = unpack(device_in, shape, self._config.logit_shift)
        # Kernels compile, and libraries take their workspaces, on the warm-up. It changes nothing: without a span
        # nothing commits, and the step itself writes the same keys and values once more. Each launch copies all numbers
        # in.
        batch.rules.starts.zero_()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._compute(batch)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with _nothing_collected(), torch.cuda.graph(graph, pool=self._pool):
            device_out = self._compute(unpack(device_in, shape, self._config.logit_shift))
        self._pool = graph.pool()
        buffers = tuple(Buffers.of(shape.words, device_out) for _ in range(IN_FLIGHT))
        self._captured[shape] = Captured(graph, device_in, device_out, buffers)
        return self._captured[shape]


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Stop the garbage collector: freeing a graph of an earlier runner would spoil the one being captured."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def spacing(tokens: int) -> int:
    """Distance between shapes of about `tokens` positions: an eighth at most, and at least `FINEST`."""
    return max(FINEST, (1 << (tokens - 1).bit_length()) // 8)
