"""On a GPU all graphs are captured at start, and answers do not depend on which steps have one."""

from __future__ import annotations

import pytest
import torch

from asynclane.models.checkpoint.config import ModelError, read_config
from asynclane.models.checkpoint.registry import Hardware, load_runner
from asynclane.models.exec.memory import Memory
from asynclane.models.exec.runner import Runner
from asynclane.models.exec.shapes import default_sizes
from asynclane.server.text.tokenizer import Tokenizer

from ..support.cases import cases, network
from ..support.driver import LIMITS, MODEL, TWO_IN_FLIGHT, run
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
