"""On a GPU answers are the CPU's in float32, with `deterministic` the same batched with others, in memory as stated."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch

from asynclane.models.checkpoint.config import ModelError, read_config
from asynclane.models.checkpoint.registry import Hardware, load_runner
from asynclane.models.exec.graphs import StepGraphs
from asynclane.models.exec.memory import Memory
from asynclane.models.exec.pack import Shape
from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import GREEDY, DeviceCommitRule, Placement, Restriction, Row, Sampling, Span, StepPlan
from asynclane.scheduler.decoding.vocabulary import Vocabulary

from ..support.cases import PARAMETERS, STORY, cases
from ..support.driver import BLOCKS_MODEL, LIMITS, MODEL, Spec, embedded_runner, run
from ..support.golden import CASES, assert_published

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
FORMATS = [("float32", False), ("float32", True), ("bfloat16", True)]


@pytest.fixture(scope="module")
def exact() -> Runner:
    return embedded_runner("float32", "cuda")


@pytest.mark.parametrize("case", CASES)
def test_decoder_gives_the_published_tokens(case: str, exact: Runner, vocabulary: Vocabulary) -> None:
    assert_published(case, exact, vocabulary)


@pytest.mark.parametrize(("dtype", "deterministic"), FORMATS)
def test_requests_batched_with_others_answer_as_each_does_alone(
    dtype: str, deterministic: bool, vocabulary: Vocabulary
) -> None:
    runner = embedded_runner(dtype, "cuda", deterministic=deterministic)
    table = cases("tiny-llada")
    together = dict(zip(table, run(runner, vocabulary, list(table.values())), strict=True))
    for name, spec in table.items():
        assert run(runner, vocabulary, [spec])[0].canvas.tolist() == together[name].canvas.tolist(), name


@pytest.mark.parametrize(("dtype", "deterministic"), FORMATS)
def test_chunks_of_a_prompt_change_no_answer(dtype: str, deterministic: bool, vocabulary: Vocabulary) -> None:
    """Some steps compute nothing but chunks, and project no position."""
    runner = embedded_runner(dtype, "cuda", model=BLOCKS_MODEL, deterministic=deterministic)
    pattern = read_config(BLOCKS_MODEL).pattern
    prompts = [(STORY * 12)[:size] for size in (400, 90, 250, 16)]
    specs = [Spec(prompt, 32, "fast-dllm", sampling=Sampling(n % 2, seed=n)) for n, prompt in enumerate(prompts)]
    whole = [answer.canvas.tolist() for answer in run(runner, vocabulary, specs, pattern=pattern)]
    for size in (16, 64):
        limits = replace(LIMITS, prefill_tokens=size)
        assert [answer.canvas.tolist() for answer in run(runner, vocabulary, specs, limits, pattern=pattern)] == whole
        for spec, wanted in zip(specs, whole, strict=True):
            assert run(runner, vocabulary, [spec], limits, pattern=pattern)[0].canvas.tolist() == wanted


@pytest.mark.parametrize("parameter", PARAMETERS)
def test_parameters_do_what_they_do_on_the_cpu(
    parameter: str, exact: Runner, runner: Runner, vocabulary: Vocabulary
) -> None:
    spec = Spec(STORY, 48, **PARAMETERS[parameter])
    choices = [replace(spec, share_group="one")] * 2
    (wanted,) = run(runner, vocabulary, [spec])
    for found in run(exact, vocabulary, [spec, *choices]):
        assert found.canvas.tolist() == wanted.canvas.tolist()
        if found.scores is not None and wanted.scores is not None:
            for got, want in zip(found.scores, wanted.scores, strict=True):
                assert (got is None) == (want is None)
                if got is not None:
                    np.testing.assert_allclose(got, want, atol=1e-3)


def plan_of(rows: list[tuple[int, int]]) -> StepPlan:
    """Rows of (slot, size) on prompts and pages of their own."""
    commits = DeviceCommitRule(sure=1, threshold=0.5)
    placements, steps = [], []
    for slot, size in rows:
        prompt = np.random.default_rng(slot).integers(20, 900, size + 100).astype(np.int32)
        prompt[-size:] = read_config(MODEL).mask_id
        pages = tuple(range(slot * 64, slot * 64 + -(-len(prompt) // 16)))
        placements.append(Placement(slot, prompt, pages))
        spans = (Span(len(prompt) - size, len(prompt), commits),)
        steps.append(Row(slot, 0, len(prompt), len(prompt), spans, GREEDY, 0))
    return StepPlan(tuple(placements), tuple(steps))


def test_a_restricted_position_takes_only_what_is_allowed(exact: Runner, runner: Runner) -> None:
    plan = plan_of([(3, 40), (1, 20)])
    words = np.zeros(-(-read_config(MODEL).vocab_size // 32), np.int32)
    words[1] = 1 << 5
    first = plan.rows[0].spans[0].start
    restricted = plan.rows[0]._replace(restriction=Restriction(first, words))
    plan = replace(plan, rows=(restricted, plan.rows[1]))
    found, wanted = exact.execute(plan), runner.execute(plan)
    assert found.proposals[0] == 37
    assert found.tokens.tolist() == wanted.tokens.tolist()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_deterministic_step_has_the_same_bits_alone_and_beside_others(dtype: str) -> None:
    runner = embedded_runner(dtype, "cuda", deterministic=True)
    alone = runner.execute(plan_of([(3, 40)]))
    for others in ([(0, 64)], [(slot, 200) for slot in range(8) if slot != 3], [(1, 5), (2, 300)]):
        beside = runner.execute(plan_of([(3, 40), *others]))
        assert np.array_equal(beside.confidence[:40].view(np.int32), alone.confidence.view(np.int32))
        assert np.array_equal(beside.tokens[:40], alone.tokens)


def test_a_runner_that_is_garbage_does_not_spoil_the_capture_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever would make the collector run in the middle of a capture: here, it runs if it may."""
    graphs = [torch.cuda.CUDAGraph()]
    with torch.cuda.graph(graphs[0]):
        torch.zeros(1, device="cuda").add_(1)
    graphs.append(graphs)  # type: ignore[arg-type]
    compute = StepGraphs._compute

    def collecting(self: StepGraphs, shape: Shape, words: torch.Tensor) -> torch.Tensor | None:
        if torch.cuda.is_current_stream_capturing() and gc.isenabled():
            gc.collect()
        return compute(self, shape, words)

    monkeypatch.setattr(StepGraphs, "_compute", collecting)
    del graphs
    runner = embedded_runner("float32", "cuda")
    assert runner.graph_counts.captures
    assert len(runner.execute(plan_of([(3, 40)])).tokens) == 40


def test_too_little_memory_is_one_line_that_says_how_much_there_is() -> None:
    config = read_config(MODEL)
    with pytest.raises(ModelError, match=r"the weights need 0\.\d+ GiB and 0\.00 GiB of the GPU may be taken"):
        load_runner(MODEL, config, Memory(8, 16, 1024, share=0.0001), Hardware("cuda"), [1])
    most = 1 << 31
    with pytest.raises(ModelError, match=rf"keys and values of {most} positions need .* GiB; .* lower --kv-cache-tok"):
        load_runner(MODEL, config, Memory(8, 16, 1024, cache_tokens=most), Hardware("cuda"), [1])


def test_pages_follow_the_memory_that_is_free() -> None:
    config = read_config(MODEL)
    before = torch.cuda.memory_allocated()  # other tests' runners
    loaded = load_runner(MODEL, config, Memory(4096, 16, 2048, share=0.1), Hardware("cuda"), [1])
    free, total = torch.cuda.mem_get_info()
    footprint = loaded.footprint
    assert 0.09 < (total - free) / total < 0.11
    stated = footprint.weights_bytes + footprint.pages_bytes + footprint.workspace_bytes
    assert torch.cuda.memory_allocated() - before <= 1.05 * stated
