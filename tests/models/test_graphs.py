"""Steps as graphs, with a CPU in the place of a GPU: a replay computes again what was captured, on the same memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from asynclane.kernels.commit import commit
from asynclane.kernels.common.types import SpanRules
from asynclane.models.exec import graphs, runner
from asynclane.scheduler import Sampling

from ..support.cases import SMALL, assert_same, cases, network
from ..support.cpu_graphs import cpu_as_gpu, graphed
from ..support.driver import TWO_IN_FLIGHT, Spec, run
from ..support.scale import ALL, part
from ..support.small_network import small_runner


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
def prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_as_gpu(monkeypatch)
    monkeypatch.setattr(runner, "commit", padded_commit)


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


@pytest.mark.parametrize(("sizes", "most"), [(EVERY_SIZE, graphs.MOST_LATE), (FEW_SIZES, 3)])
def test_steps_that_leave_out_positions_get_graphs_when_they_come_again(
    sizes: tuple[int, ...], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone and beside requests that leave out nothing, with every input that a request may need."""
    monkeypatch.setattr(graphs, "MOST_LATE", most)
    net, table, plain = network("block-causal"), cases("block-causal"), small_runner(SMALL["block-causal"], layers=4)
    made, found = graphed(plain, sizes)
    start = found.captures
    some = [case for case, spec in table.items() if spec.params.get("cache") == "focus"]
    specs = [table[case] for case in [*some, *part([case for case in table if case not in some], 4, seed="beside")]]
    for number, alpha in enumerate((1.0, 3.0, 4096.0)):
        params = {"cache": "focus", "early_stop": False, "threshold": 0.8 + 0.2 * (number % 2), "focus_alpha": alpha}
        few = net.prompts[number], max(net.lengths)
        specs += [Spec(*few, "fast-dllm", params), Spec(*few, "fast-dllm", params, Sampling(0.9, 0.9, seed=number))]
    names = [*map(str, specs)]
    wanted = dict(zip(names, run(plain, net.vocabulary, specs, net.limits, pattern=net.pattern), strict=True))
    for name, spec in [*zip(names, specs, strict=True)][-2:]:
        assert_same([name], run(made, net.vocabulary, [spec], net.limits, pattern=net.pattern), wanted)
    assert_same(names, run(made, net.vocabulary, specs, net.limits, pattern=net.pattern, halving=TWO_IN_FLIGHT), wanted)
    assert start < found.captures == len(found._bodies) + len(found._tails) <= start + most
    every: Any = [*found._bodies.items(), *((shape, tail.graph) for shape, tail in found._tails.items())]
    bodies = [graph.replays for shape, graph in every if shape.inputs.kept]
    tails = [graph.replays for shape, graph in every if shape.inputs.kept_projected]
    assert len(bodies) + len(tails) == found.captures - start + 3, "the largest ones are there at start"
    assert sum(bodies) > 3
    assert sum(tails) > 3
    assert found.eager_steps


def test_steps_run_without_graphs_once_there_is_no_memory_for_late_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    net, plain = network("block-causal"), small_runner(SMALL["block-causal"], layers=4)
    made, found = graphed(plain, FEW_SIZES)
    start, failed = found.captures, list[object]()

    def fails(shape: object) -> None:
        failed.append(shape)
        raise torch.OutOfMemoryError

    monkeypatch.setattr(found, "_capture", fails)
    params = {"cache": "focus", "early_stop": False, "threshold": 1.0}
    specs = [Spec(prompt, max(net.lengths), "fast-dllm", params) for prompt in net.prompts[:2]]
    names = [*map(str, specs)]
    wanted = dict(zip(names, run(plain, net.vocabulary, specs, net.limits, pattern=net.pattern), strict=True))
    assert_same(names, run(made, net.vocabulary, specs, net.limits, pattern=net.pattern), wanted)
    assert (found.captures, len(failed)) == (start, 1)
