"""Launches steps on a GPU as CUDA graphs, most of them captured at start: a replay costs one launch, not hundreds.

A step is the graph of its body, then that of its tail (`shapes`). Both read one static buffer, into which a plan is
copied, and the body leaves in static memory what the tail goes on with. A part whose shape is not in the set runs the
same kernels without a graph. Steps with a selection have too many shapes for the start, of which few come: a shape
that comes again is captured then. Graphs share one memory pool, since one runs at a time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ...scheduler.contract import MOST_RANKS, StepPlan
from ..network import Unfinished
from .forms import Forms
from .pack import Batch, Shape, pack_nothing, unpack
from .selection import Selected
from .shapes import MOST_PADDINGS, Fit, Padding, PaddingKey, ShapeSet

IN_FLIGHT = 2  # steps that may be launched before the first is collected
DEVICE = torch.device("cuda")
MOST_LINES = 4 + 1 + 1 + 2 * MOST_RANKS  # of a result
MOST_LATE = 128  # graphs that are captured after the start: each stops all streams for a moment, and takes memory

Report = Callable[[int, int], None]  # how much is done, of how much
Send = Callable[[PaddingKey, np.ndarray], None]  # packed steps, to other ranks


class StepModel(Protocol):
    """Both parts of a step, each with the same operations whatever the numbers in a batch."""

    def begin(self, batch: Batch) -> Unfinished: ...

    def finish(self, unfinished: Unfinished, batch: Batch) -> Tensor:
        """int32 [4 or more, N]."""
        ...


@dataclass(frozen=True, slots=True)
class Turn:
    """The memory of one launch until it is collected."""

    host_in: Tensor  # pinned int32
    host_out: Tensor  # pinned int32
    started: torch.cuda.Event
    ended: torch.cuda.Event

    @classmethod
    def of(cls, words: int, results: int) -> Turn:
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        host_in, host_out = (torch.zeros(size, dtype=torch.int32).pin_memory() for size in (words, results))
        return cls(host_in, host_out, started, ended)


@dataclass(frozen=True, slots=True)
class Launched:
    """A step under way. Its result is valid until `IN_FLIGHT` more are launched."""

    fit: Fit
    lines: np.ndarray  # pinned int32 [4 or more, projected positions of the shape]
    started: torch.cuda.Event
    ended: torch.cuda.Event

    def done(self) -> bool:
        return bool(self.ended.query())  # type: ignore[no-untyped-call]

    def collect(self) -> tuple[np.ndarray, float]:
        """Wait for the result, and the device's seconds."""
        self.ended.synchronize()
        return self.lines, self.started.elapsed_time(self.ended) / 1e3


@dataclass(frozen=True, slots=True)
class Tail:
    graph: torch.cuda.CUDAGraph
    out: Tensor  # int32 [4 or more, projected]


@dataclass(frozen=True, slots=True)
class StepGraph:
    """Both graphs of a step."""

    body: torch.cuda.CUDAGraph
    tail: Tail | None

    def replay(self) -> None:
        self.body.replay()
        if self.tail is not None:
            self.tail.graph.replay()


class HostPart(NamedTuple):
    """A part of pinned memory. Both views are made once: each takes as long as a launch."""

    tensor: Tensor
    array: np.ndarray

    @classmethod
    def of(cls, tensor: Tensor) -> HostPart:
        return cls(tensor, tensor.numpy())


@dataclass(frozen=True, slots=True)
class Prepared:
    """A padding's places in the static buffers, and its graphs. None: it has no place, or no graph."""

    hosts: tuple[HostPart, ...]  # of its words, one for each turn; empty: the static buffers are too small
    words: Tensor | None  # on the device
    results: tuple[HostPart, ...]  # of its result, one for each turn; empty: it has no tail's graph
    body: torch.cuda.CUDAGraph | None
    tail: Tail | None


class StepGraphs:
    """`captures` counts graphs, `eager_steps` steps of which a part ran without one. `send` gets each step that is
    launched, before this device does."""

    def __init__(self, model: StepModel, shapes: ShapeSet, send: Send | None = None) -> None:
        self.captures = 0
        self.eager_steps = 0
        self._send = send
        self._model = model
        self._shapes = shapes
        self._forms = Forms(shapes)
        self._bodies: dict[Shape, torch.cuda.CUDAGraph] = {}
        self._tails: dict[Shape, Tail] = {}
        self._seen = set[Shape]()  # shapes with a selection that have come once, and have no graph
        self._late = 0  # graphs captured after the start
        self._stream: torch.cuda.Stream | None = None  # graphs are captured on it
        self._prepared: dict[Padding, Prepared] = {}
        self._launched = 0
        self._pool: Any = torch.cuda.graph_pool_handle()  # torch names its type only privately
        # Sections of the body end where those of the tail begin, at the same place for all shapes.
        self._border = shapes.body_words
        with torch.inference_mode(False):  # `launch` copies into them without that mode: entering it takes 0.03 ms
            self._device_in = torch.zeros(self._border + shapes.tail_words, dtype=torch.int32, device=DEVICE)
            self._turns = [Turn.of(len(self._device_in), MOST_LINES * shapes.most) for _ in range(IN_FLIGHT)]
        config, dtype = shapes.config, shapes.numerics.dtype
        self._kept = Unfinished(  # what a body leaves for a tail
            torch.zeros(
                (shapes.most, config.heads, config.heads_of(config.layers - 1).head_dim), dtype=dtype, device=DEVICE
            ),
            torch.zeros((shapes.most, config.dim), dtype=dtype, device=DEVICE),
            Selected.room(shapes.most, DEVICE) if shapes.selects else None,
        )

    # --- Before the first step ----------------------------------------------------------------------------------

    def run_all(self, report: Report, dry: bool = False) -> None:
        """Run each shape of the set without a graph, on padding alone. It changes nothing. Libraries load their kernels
        then, and memory for the largest is taken first. `dry`: kernels of this project may be left out."""
        shapes = [*self._shapes.bodies(), *self._shapes.tails()]
        report(0, len(shapes))
        for number, shape in enumerate(shapes):
            if not (dry and shape.inputs.ranks is not None):  # these look up what kernels have found
                self._compute(shape, _padding_of(shape).to(DEVICE))
            report(number + 1, len(shapes))
        torch.cuda.synchronize()

    def reserve(self) -> None:
        """Take the memory of the largest step without a graph, so that it is not missing later."""
        for shape in (self._shapes.bodies()[0], self._shapes.tails()[0]):
            self._compute(shape, _padding_of(shape).to(DEVICE))

    def capture_all(self, report: Report) -> None:
        """Capture each shape of the set, the largest first, so that memory taken for it serves the others."""
        shapes = [*self._shapes.bodies(), *self._shapes.tails()]
        report(0, len(shapes))
        with self._capturing():
            for number, shape in enumerate(shapes):
                self._capture(shape)
                report(number + 1, len(shapes))

    def capture_for(self, plan: StepPlan) -> StepGraph:
        """The graphs of a plan that the set holds, captured now. Replays compute what was launched last."""
        padding = self._shapes.fit(plan).padding
        body, tail = padding.body, padding.tail
        if body is None:
            raise ValueError("the plan is not in the set")
        with self._capturing():
            for shape in filter(None, (body, tail)):
                self._compute(shape, _padding_of(shape).to(DEVICE))
                self._capture(shape)
        return StepGraph(self._bodies[body], None if tail is None else self._tails[tail])

    def _capture_if_again(self, padding: Padding) -> None:
        """Capture the parts of a step with a selection whose shapes have come before, after the steps under way. Each
        is computed first without a graph, which loads its kernels, on the stream of such steps, so in their memory."""
        if not padding.key[-1].kept:
            return
        parts = [shape for shape in (padding.body, padding.tail) if shape is not None]
        missing = [shape for shape in parts if shape not in self._bodies and shape not in self._tails]
        again = [shape for shape in missing if shape in self._seen][: MOST_LATE - self._late]
        self._seen.update(missing)
        if not again:
            return
        self._late += len(again)
        try:
            with torch.inference_mode():
                for shape in again:
                    self._compute(shape, _padding_of(shape).to(DEVICE))
                with self._capturing():
                    for shape in again:
                        self._capture(shape)
                        self._seen.discard(shape)
        except torch.OutOfMemoryError:
            self._late = MOST_LATE  # steps without graphs need no more memory

    def _compute(self, shape: Shape, words: Tensor) -> Tensor | None:
        """A body, or a tail and its result."""
        batch = unpack(words, shape)
        if shape.tokens:
            self._keep(self._model.begin(batch))
            return None
        return self._model.finish(self._kept, batch)

    def _keep(self, unfinished: Unfinished) -> None:
        tokens = len(unfinished.residual)
        self._kept.queries[:tokens].copy_(unfinished.queries)
        self._kept.residual[:tokens].copy_(unfinished.residual)
        if self._kept.selected is not None and unfinished.selected is not None:
            self._kept.selected.fill(unfinished.selected)

    @contextmanager
    def _capturing(self) -> Iterator[None]:
        """Have a stream to capture on, and stop the garbage collector: freeing a graph of an earlier runner would spoil
        the one being captured. A library takes its workspace for a stream at its first call, outside of all graphs, so
        all are captured on one stream."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            torch.cuda.synchronize()
            first = self._stream is None
            self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
            with torch.cuda.stream(self._stream):
                for shape in (self._shapes.bodies()[-1], self._shapes.tails()[-1]) if first else ():
                    self._compute(shape, _padding_of(shape).to(DEVICE))
                yield
            torch.cuda.synchronize()
        finally:
            self._prepared.clear()
            if collecting:
                gc.enable()

    def _capture(self, shape: Shape) -> None:
        words = self._place(self._device_in, shape)
        words.copy_(_padding_of(shape))
        torch.cuda.synchronize()
        graph, out = self._recorded(lambda: self._compute(shape, words))
        if out is None:
            self._bodies[shape] = graph
        else:
            self._tails[shape] = Tail(graph, out)
        self.captures += 1

    def _recorded(self, compute: Callable[[], Tensor | None]) -> tuple[torch.cuda.CUDAGraph, Tensor | None]:
        """The graph of what is computed, and where a replay leaves the result."""
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            out = compute()
        finally:
            graph.capture_end()
        return graph, out

    def _place(self, buffer: Tensor, shape: Shape) -> Tensor:
        """The part of a static buffer that a shape takes."""
        return buffer[self._border - shape.body_words :][: shape.words]

    # --- Steps --------------------------------------------------------------------------------------------------

    def launch(self, plan: StepPlan) -> Launched:
        """Start a plan."""
        form = self._forms.of(plan)
        padding = form.fit.padding
        self._capture_if_again(padding)
        prepared, host = self._next_host(padding)
        form.pack_into(host.array, plan, self._shapes.config.logit_shift)
        if self._send is not None:
            self._send(padding.key, host.array)
        turn, lines = self._start(padding, prepared, host)
        return Launched(form.fit, lines.array, turn.started, turn.ended)

    def follow(self, key: PaddingKey, packed: np.ndarray) -> None:
        """Start a step that another rank has packed. Waits if more are under way than it has launched."""
        padding = self._shapes.padding(key)
        self._turns[self._launched % IN_FLIGHT].ended.synchronize()
        prepared, host = self._next_host(padding)
        host.array[:] = packed
        self._start(padding, prepared, host)

    def _next_host(self, padding: Padding) -> tuple[Prepared, HostPart]:
        """The place of the next launch's words."""
        prepared = self._prepared.get(padding) or self._prepare(padding)
        if prepared.words is not None:
            return prepared, prepared.hosts[self._launched % IN_FLIGHT]
        return prepared, HostPart.of(_pinned(padding.shape.words))

    def _start(self, padding: Padding, prepared: Prepared, host: HostPart) -> tuple[Turn, HostPart]:
        """Start a packed step: its turn, and the memory for its result."""
        number = self._launched % IN_FLIGHT
        shape, turn, words = padding.shape, self._turns[number], prepared.words
        if words is None:
            words = torch.empty_like(host.tensor, device=DEVICE)
        turn.started.record()
        words.copy_(host.tensor, non_blocking=True)
        if prepared.words is not None and prepared.body is not None and prepared.tail is not None:
            prepared.body.replay()
            prepared.tail.graph.replay()
            out = prepared.tail.out
        else:
            out = self._run(prepared, shape, words)
        lines = prepared.results[number] if prepared.results else self._result_of(turn, out)
        lines.tensor.copy_(out, non_blocking=True)
        turn.ended.record()
        self._launched += 1  # last: a launch that fails must not take the turn of one in flight
        return turn, lines

    def _result_of(self, turn: Turn, out: Tensor) -> HostPart:
        """The memory of a turn for a result of this shape."""
        lines = turn.host_out[: out.numel()] if out.numel() <= len(turn.host_out) else _pinned(out.numel())
        return HostPart.of(lines.view(out.shape))

    def _prepare(self, padding: Padding) -> Prepared:
        shape = padding.shape
        hosts: tuple[HostPart, ...] = ()
        words = None
        tail_words = shape.words - shape.body_words
        if shape.body_words <= self._border and tail_words <= len(self._device_in) - self._border:
            hosts = tuple(HostPart.of(self._place(turn.host_in, shape)) for turn in self._turns)
            words = self._place(self._device_in, shape)
        body = None if padding.body is None else self._bodies.get(padding.body)
        tail = None if padding.tail is None else self._tails.get(padding.tail)
        results = () if tail is None else tuple(self._result_of(turn, tail.out) for turn in self._turns)
        if len(self._prepared) == MOST_PADDINGS:
            self._prepared.clear()
        prepared = self._prepared[padding] = Prepared(hosts, words, results, body, tail)
        return prepared

    @torch.inference_mode()
    def _run(self, prepared: Prepared, shape: Shape, words: Tensor) -> Tensor:
        """A step of which a part has no graph: its result."""
        batch = unpack(words, shape)
        unfinished = self._kept
        eager = prepared.body is None
        if prepared.body is None:
            unfinished = self._model.begin(batch)
        else:
            if prepared.words is None:
                self._device_in[self._border - shape.body_words : self._border].copy_(words[: shape.body_words])
            prepared.body.replay()
        if not shape.projected:
            out = torch.empty((4, 0), dtype=torch.int32, device=DEVICE)
        elif prepared.tail is not None:
            if prepared.body is None:
                self._keep(unfinished)
            prepared.tail.graph.replay()
            out = prepared.tail.out
        else:
            eager = True
            out = self._model.finish(unfinished, batch)
        self.eager_steps += eager
        return out


def _pinned(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.int32).pin_memory()


def _padding_of(shape: Shape) -> Tensor:
    words = np.empty(shape.words, np.int32)
    pack_nothing(words, shape)
    return torch.from_numpy(words)
