"""A CPU in the place of a GPU: a replay of a graph computes again what was captured, on the same memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from asynclane.models.exec import graphs
from asynclane.models.exec.graphs import StepGraphs
from asynclane.models.exec.runner import Runner
from asynclane.models.exec.shapes import ShapeSet
from asynclane.models.kv_cache import KvPages

from .driver import LIMITS


class Replayed:
    """A stand-in for a CUDA graph."""

    def __init__(self, compute: Callable[[], Tensor | None]) -> None:
        self._compute = compute
        self.out = compute()
        self.replays = 0

    @torch.inference_mode()
    def replay(self) -> None:
        self.replays += 1
        found = self._compute()
        if found is not None and self.out is not None:
            self.out.copy_(found)


class Clock:
    def __init__(self, **_: bool) -> None: ...
    def record(self) -> None: ...
    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Clock) -> float:
        return 1.0


class CpuGraphs(StepGraphs):
    def _recorded(self, compute: Callable[[], Tensor | None]) -> Any:
        graph = Replayed(compute)
        return graph, graph.out


@contextmanager
def nothing(*_: object) -> Iterator[None]:
    yield


def cpu_as_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let graphs take the CPU's memory."""
    monkeypatch.setattr(graphs, "DEVICE", torch.device("cpu"))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    for name, fake in (("Event", Clock), ("Stream", object), ("stream", nothing)):
        monkeypatch.setattr(torch.cuda, name, fake)
    for name in ("graph_pool_handle", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)


def graphed(plain: Runner, sizes: tuple[int, ...], at_start: bool = True) -> tuple[Runner, CpuGraphs]:
    """A runner of the same network, whose steps are graphs. Not `at_start`: none is captured yet."""
    network, slots = plain._network, len(plain._canvases)
    config, numerics = network.config, network.numerics
    pages = KvPages(config, LIMITS.pages, plain._pages.page_size, slots, numerics, torch.device("cpu"))
    made = Runner(network, pages, slots, plain._banned.tolist(), plain._end_ids.tolist())
    found = CpuGraphs(made, ShapeSet(config, numerics, slots, sizes))
    if at_start:
        with torch.inference_mode():
            found.reserve()
            found.capture_all(lambda done, total: None)
    made._graphs = found
    return made, found
