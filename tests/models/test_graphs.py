"""Steps as graphs, with a CPU in the place of a GPU: a replay computes again what was captured, on the same memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from asynclane.kernels.commit import commit
from asynclane.kernels.common.types import SpanRules
from asynclane.models.exec import graphs, runner
from asynclane.models.exec.graphs import StepGraphs
from asynclane.models.exec.runner import Runner
from asynclane.models.exec.shapes import ShapeSet
from asynclane.models.kv_cache import KvPages

from ..support.cases import SMALL, assert_same, cases, network
from ..support.driver import LIMITS, TWO_IN_FLIGHT, run
from ..support.scale import ALL, part


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


def padded_commit(
    canvases: Tensor, slots: Tensor, places: Tensor, tokens: Tensor, by: Tensor, mask_id: int, rules: SpanRules
) -> Tensor:
    """As the kernel, which leaves padding alone."""
    count, spans = int(rules.starts[-1]), int((rules.starts.diff() > 0).sum())
    real = SpanRules(rules.starts[: spans + 1], *(None if part is None else part[:spans] for part in rules[1:]))
    out = torch.full_like(tokens, mask_id)
    if count:
        out[:count] = commit(canvases, slots[:count], places[:count], tokens[:count], by[:count], mask_id, real)
    return out


@pytest.fixture(autouse=True)
def cpu_as_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "DEVICE", torch.device("cpu"))
    monkeypatch.setattr(runner, "commit", padded_commit)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    for name, fake in (("Event", Clock), ("Stream", object), ("stream", nothing)):
        monkeypatch.setattr(torch.cuda, name, fake)
    for name in ("graph_pool_handle", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)


def graphed(plain: Runner, sizes: tuple[int, ...]) -> tuple[Runner, CpuGraphs]:
    """A runner of the same network, whose steps are graphs."""
    network, slots = plain._network, len(plain._canvases)
    config, numerics = network.config, network.numerics
    pages = KvPages(config, LIMITS.pages, LIMITS.page_size, slots, numerics, torch.device("cpu"))
    made = Runner(network, pages, slots, plain._banned.tolist(), plain._end_ids.tolist())
    found = CpuGraphs(made, ShapeSet(config, numerics, slots, sizes))
    with torch.inference_mode():
        found.reserve()
        found.capture_all(lambda done, total: None)
    made._graphs = found
    return made, found


ALONE = [name for name, pattern in SMALL.items() if pattern.drafter is None]  # a drafter has graphs of its own
EVERY_SIZE, FEW_SIZES = (16, 32, 64, 128, 256, 512), (100, 400)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        *((name, EVERY_SIZE) for name in part(ALONE, 2)),
        *((name, FEW_SIZES) for name in (ALONE if ALL else ("whole-canvas",))),
    ],
)
def test_answers_are_those_of_steps_without_graphs(name: str, sizes: tuple[int, ...]) -> None:
    net = network(name)
    made, found = graphed(net.runner, sizes)
    rare = [case for case, spec in cases(name).items() if spec.constraint is not None and spec.ranks is not None]
    some = list(dict.fromkeys([*part(cases(name), 18, seed=f"graphs {name}"), rare[0]]))
    specs = [cases(name)[case] for case in some]
    answers = run(made, net.vocabulary, specs, net.limits, pattern=net.pattern, halving=TWO_IN_FLIGHT)
    assert_same(some, answers, dict(zip(some, net.run(specs), strict=True)))
    assert found.captures == len(found._bodies) + len(found._tails)
    bodies: Any = found._bodies.values()
    replays = sum(graph.replays for graph in bodies)
    assert replays > 10
    assert found.eager_steps > 0  # log-probabilities with a grammar are rare
