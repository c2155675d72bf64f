"""The network on its kernels, in Triton's interpreter where there is no GPU: steps that leave positions out of later
layers have the results that torch's operations give, with and without graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest
import torch

from asynclane.models import kv_cache, network
from asynclane.models.checkpoint.config import ModelConfig
from asynclane.models.exec import runner as runners
from asynclane.models.exec.runner import Runner
from asynclane.models.kv_cache import KvPages, _tensors
from asynclane.models.network import Transformer, allocate
from asynclane.models.numerics import Numerics
from asynclane.scheduler.contract import (
    GREEDY,
    Bias,
    DeviceCommitRule,
    Ints,
    Measure,
    Placement,
    Row,
    Sampling,
    Selection,
    Span,
    StepPlan,
    StepResult,
)

from ..support.cpu_graphs import CpuGraphs, cpu_as_gpu, graphed
from ..support.driver import LIMITS
from ..support.kernel_cases import kernels_of

LENGTH, MASK, SLOTS = 24, 1, 3
pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there kernels do not run on a CPU"),
    # What is left of other tensors stands in the results of padding, and is computed with.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
CONFIG = ModelConfig(
    "SDARForCausalLM", 32, 3, 2, 1, 48, 40, 64, 1e-5, 10000.0, tied_head=False, mask_id=MASK, head_dim=16, block_size=8
)
BEST = DeviceCommitRule(1, 0.9)


def runner_of(numerics: Numerics) -> Runner:
    device = torch.device("cpu")
    weights, parts = allocate(CONFIG, numerics, device)
    generator = torch.Generator().manual_seed(3)
    for weight in {id(part.weight): part.weight for part in parts.values()}.values():
        assert isinstance(weight, torch.Tensor)
        weight.normal_(0, 0.5, generator=generator)
    pages = KvPages(CONFIG, LIMITS.pages, 16, SLOTS, numerics, device)
    return Runner(Transformer(CONFIG, numerics, weights), pages, SLOTS, [MASK], [0])


@contextmanager
def on_kernels() -> Iterator[None]:
    """Let networks and runners take the functions that launch kernels."""
    kernels_of("importance")
    modules: tuple[ModuleType, ...] = kv_cache, network, runners
    with pytest.MonkeyPatch.context() as patch:
        cpu_as_gpu(patch)
        for module in modules:
            for name, value in list(vars(module).items()):
                reference = getattr(value, "__wrapped__", None)
                if reference is not None and reference.__module__.endswith(".reference"):
                    kernels = import_module(reference.__module__.replace(".reference", ".triton"))
                    patch.setattr(module, name, getattr(kernels, reference.__name__))
        yield


def canvas_of(slot: int) -> Ints:
    """A text whose last block has masks."""
    tokens = np.random.default_rng(slot).integers(2, 40, LENGTH).astype(np.int32)
    tokens[[17, 18, 20, 21 + slot % 3]] = MASK
    return tokens


def focused(slot: int, keep: int, **fields: object) -> Row:
    """The last block's step: the position 16 has just committed."""
    candidates = 16 + np.flatnonzero(canvas_of(slot)[16:] == MASK).astype(np.int32)
    cached = np.setdiff1d(np.arange(17, LENGTH), candidates).astype(np.int32)
    row = Row(slot, 16, LENGTH, LENGTH, (Span(16, LENGTH, BEST),), GREEDY, 3)
    return row._replace(selection=Selection(keep, candidates, cached))._replace(**fields)


def written(runner: Runner) -> Runner:
    """The runner with keys of all requests in all layers."""
    placements = tuple(Placement(slot, canvas_of(slot), tuple(range(4 * slot, 4 * slot + 4))) for slot in range(SLOTS))
    runner.execute(StepPlan(placements, tuple(Row(slot, 0, LENGTH, LENGTH, (), GREEDY, 0) for slot in range(SLOTS))))
    return runner


def like(plain: Runner) -> tuple[Runner, CpuGraphs]:
    """A runner on kernels with the canvases, keys and values of one that is not."""
    made, graphs = graphed(plain, (LENGTH,), at_start=False)
    made._canvases.copy_(plain._canvases)
    made._pages.table.copy_(plain._pages.table)
    for name in ("keys", "values"):
        for ours, theirs in zip(getattr(made._pages, name), getattr(plain._pages, name), strict=True):
            for one, other in zip(_tensors(ours), _tensors(theirs), strict=True):
                one.copy_(other)
    return made, graphs


def assert_near(found: StepResult, wanted: StepResult, rtol: float = 1e-3) -> None:
    assert found.tokens.tolist() == wanted.tokens.tolist()
    assert found.proposals.tolist() == wanted.proposals.tolist()
    np.testing.assert_allclose(found.confidence, wanted.confidence, rtol)
    if found.scores is not None and wanted.scores is not None:
        predicted = found.proposals != MASK
        np.testing.assert_allclose(found.scores.logprobs[predicted], wanted.scores.logprobs[predicted], rtol)


@pytest.mark.parametrize(
    "numerics",
    [Numerics(torch.float32, fixed=True), Numerics(torch.float32, fp8_cache=True)],
    ids=["fixed", "keys in FP8"],
)
def test_a_step_with_a_selection_has_the_result_of_torch(numerics: Numerics) -> None:
    plain, step = written(runner_of(numerics)), StepPlan((), (focused(0, 2), focused(2, 3)))
    with on_kernels():
        found = like(plain)[0].execute(step)
    rtol = 0.1 if numerics.fp8_cache else 1e-3  # the last bits decide how keys are rounded
    assert_near(found, plain.execute(step), rtol)


def test_a_step_with_a_selection_has_it_as_graphs_whatever_its_requests_need() -> None:
    """Beside a row that leaves out nothing; the second time a body's graph and a tail's are captured."""
    bias = Bias(18, 23, np.array([5, 6], np.int32), np.array([-np.inf, 2.0], np.float32))
    drawn = (Span(16, LENGTH, DeviceCommitRule(1, 0.2, measure=Measure.MARGIN)),)
    hot = Sampling(0.9, 0.95, seed=7, top_k=9)
    whole = Row(1, 16, LENGTH, LENGTH, (Span(17, 20, BEST), Span(20, LENGTH, BEST, False)), GREEDY, 1, biases=(bias,))
    first = focused(0, 2, biases=(bias,), ranks=2, sampling=hot, spans=drawn)
    step = StepPlan((), (first, whole._replace(ranks=1), focused(2, 3)))
    plain = written(runner_of(Numerics(torch.float32)))
    with on_kernels():
        made, graphs = like(plain)
        found = [made.execute(step) for _ in range(2)]
    assert (graphs.captures, graphs.eager_steps) == (2, 1)
    for each in found:
        assert_near(each, plain.execute(step))
