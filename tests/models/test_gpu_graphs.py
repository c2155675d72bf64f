"""On a GPU graphs are captured at start, those of steps that leave out positions when these come again, and answers do
not depend on which steps have one."""

from __future__ import annotations

import pytest
import torch

from asynclane.models.checkpoint.config import ModelError, read_config
from asynclane.models.checkpoint.registry import Hardware, load_runner
from asynclane.models.exec.graphs import MOST_LATE
from asynclane.models.exec.memory import Memory
from asynclane.models.exec.runner import Runner
from asynclane.models.exec.shapes import default_sizes
from asynclane.scheduler import Sampling
from asynclane.server.text.tokenizer import Tokenizer

from ..support.cases import CHATS, assert_same, cases, network
from ..support.driver import BLOCKS_MODEL, LIMITS, MODEL, TWO_IN_FLIGHT, Spec, embedded_runner, run
from ..support.scale import part

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MEMORY = Memory(LIMITS.slots, LIMITS.page_size, LIMITS.step_tokens, LIMITS.pages * LIMITS.page_size)


def runner_with(sizes: tuple[int, ...] | None) -> Runner:
    hardware = Hardware("cuda", "float32", deterministic=True, graph_sizes=sizes)
    return load_runner(MODEL, read_config(MODEL), MEMORY, hardware, Tokenizer(MODEL).end_ids).runner


@pytest.mark.parametrize("sizes", [None, (64, 256), (16,)], ids=["all", "some", "few"])
def test_nothing_is_captured_after_the_start_and_answers_stay_the_same(sizes: tuple[int, ...] | None) -> None:
    runner, vocabulary = runner_with(sizes), network("tiny-llada").vocabulary
    captures = runner.graph_counts.captures
    assert captures > len(sizes or default_sizes(LIMITS.step_tokens))
    some = part(cases("tiny-llada"), 5, seed="graphs")
    specs = [cases("tiny-llada")[case] for case in some]
    alone = [run(runner, vocabulary, [spec])[0].canvas.tolist() for spec in specs]
    batched = run(runner, vocabulary, specs, halving=TWO_IN_FLIGHT)
    assert [answer.canvas.tolist() for answer in batched] == alone
    assert runner.graph_counts.captures == captures
    assert runner.graph_counts.eager_steps
    without = runner_with((1,))  # no step is as small
    assert [answer.canvas.tolist() for answer in run(without, vocabulary, specs)] == alone


def test_a_size_that_no_step_has_is_refused_in_one_line() -> None:
    with pytest.raises(ModelError, match="--cuda-graph-sizes: no step has 8192 positions: --max-step-tokens is 4096"):
        runner_with((16, 8192))


def focused() -> dict[str, Spec]:
    """Requests that leave out positions of blocks in later layers, and others, by name."""
    specs = []
    for number, chat in enumerate(CHATS[:6]):
        params = {"cache": "focus", "early_stop": False, "threshold": (1.0, 0.999)[number % 2]}
        sampling = Sampling(0.8 * (number % 3 == 2), 0.95, seed=number)
        specs.append(Spec(chat, 40, "fast-dllm", params, sampling, ranks=5 if number == 3 else None))
    specs.append(Spec(CHATS[6], 33, "fast-dllm", {"cache": "focus", "focus_alpha": 3.0, "entropy_bound": 0.5}))
    specs += [Spec(CHATS[0], 40, "asynclane"), Spec(CHATS[1], 40, "fast-dllm", {"threshold": 1.0, "early_stop": False})]
    return {str(number): spec for number, spec in enumerate(specs)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_that_leave_out_positions_get_graphs_when_they_come_again(dtype: str) -> None:
    """Answers are the same alone and batched, with graphs and without."""
    pattern, vocabulary, specs = read_config(BLOCKS_MODEL).pattern, network("tiny-sdar").vocabulary, focused()
    made = embedded_runner(dtype, "cuda", BLOCKS_MODEL, deterministic=True)
    without = embedded_runner(dtype, "cuda", BLOCKS_MODEL, deterministic=True, graph_sizes=(1,))
    start, none = made.graph_counts.captures, without.graph_counts.captures
    wanted = {name: run(without, vocabulary, [spec], pattern=pattern)[0] for name, spec in specs.items()}
    assert_same(specs, run(without, vocabulary, [*specs.values()], pattern=pattern), wanted)
    for name, spec in specs.items():
        assert_same([name], run(made, vocabulary, [spec], pattern=pattern), wanted)
    for _ in range(2):
        answers = run(made, vocabulary, [*specs.values()], pattern=pattern, halving=TWO_IN_FLIGHT)
        assert_same(specs, answers, wanted)
    late = made.graph_counts.captures - start
    assert 4 < late <= MOST_LATE
    assert without.graph_counts.captures == none
    eager = made.graph_counts.eager_steps
    run(made, vocabulary, [*specs.values()], pattern=pattern, halving=TWO_IN_FLIGHT)
    assert made.graph_counts.eager_steps == eager, "all shapes of these steps have come before"
