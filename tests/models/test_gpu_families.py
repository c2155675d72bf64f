"""On a GPU every family's logits are the CPU's in float32, and its answers those that each request gets alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from asynclane.models.checkpoint.config import read_config
from asynclane.models.checkpoint.registry import EMBEDDED, Hardware, load_runner
from asynclane.models.exec.memory import Memory
from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import GREEDY, DeviceCommitRule, Placement, Row, Selection, Span, StepPlan
from asynclane.scheduler.decoding.registry import DECODERS
from asynclane.scheduler.decoding.vocabulary import Vocabulary

from ..support.cases import FAMILY_LENGTH, FAMILY_LIMITS, FAMILY_PROMPTS
from ..support.checkpoints import CONFIGS, write_checkpoint
from ..support.driver import FILLING, LIMITS, Spec, embedded_runner, refusal, run
from ..support.families import IDS, LENGTH, logits, placed, row

if not torch.cuda.is_available():  # hundreds of cases, which take seconds to be skipped one by one
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu


FITTING: Mapping[str, Mapping[str, object]] = {"asynclane-paper": {"max_lanes": 4}}  # rows that fit into a step


def runner_of(directory: Path, device: str, dtype: str = "float32", **hardware: Any) -> Runner:
    limits = FAMILY_LIMITS
    memory = Memory(limits.slots, limits.page_size, limits.step_tokens, limits.pages * limits.page_size)
    return load_runner(directory, read_config(directory), memory, Hardware(device, dtype, **hardware), [1]).runner


@pytest.fixture(scope="module", params=tuple(CONFIGS))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("gpu") / request.param, request.param)


def test_logits_are_the_cpus(family: Path) -> None:
    """Logits of a whole row, and of one that reads the pages that the first has written."""
    on_cpu, on_gpu = runner_of(family, "cpu"), runner_of(family, "cuda")
    want = logits(on_cpu, IDS)
    torch.testing.assert_close(logits(on_gpu, IDS).cpu(), want, atol=1e-4, rtol=0)
    later = on_gpu.logits(StepPlan((), (row(on_gpu, 0, 16, LENGTH),)))
    torch.testing.assert_close(later.cpu(), want[16:], atol=1e-4, rtol=0)
    beside = StepPlan((placed(0, IDS), placed(1, IDS[::-1])), (row(on_gpu, 0, 0, LENGTH), row(on_gpu, 1, 0, LENGTH)))
    torch.testing.assert_close(on_gpu.logits(beside)[:LENGTH].cpu(), want, atol=1e-4, rtol=0)


@pytest.mark.parametrize("quantization", [None, "fp8"])
def test_narrow_logits_stay_near(family: Path, quantization: str | None) -> None:
    want = logits(runner_of(family, "cpu"), IDS)
    got = logits(runner_of(family, "cuda", "bfloat16", quantization=quantization), IDS).cpu()
    assert torch.cosine_similarity(got.float(), want, dim=-1).mean() > (0.95 if quantization else 0.99)


@pytest.mark.parametrize("decoder", DECODERS)
def test_answers_are_the_same_alone_and_batched_with_others(family: Path, decoder: str, vocabulary: Vocabulary) -> None:
    config = read_config(family)
    pattern = config.pattern
    if (message := refusal(decoder, pattern)) is not None:
        pytest.skip(message)
    runner = runner_of(family, "cuda", "bfloat16", deterministic=True)
    whole = {"early_stop": False} if "early_stop" in DECODERS[decoder].defaults else {}
    params = whole | FILLING.get(decoder, {}) | FITTING.get(decoder, {})
    specs = [Spec(prompt, FAMILY_LENGTH, decoder, params) for prompt in FAMILY_PROMPTS]
    for spec, sequence in zip(specs, run(runner, vocabulary, specs, FAMILY_LIMITS, pattern=pattern), strict=True):
        (alone,) = run(runner, vocabulary, [spec], FAMILY_LIMITS, pattern=pattern)
        assert alone.canvas.tolist() == sequence.canvas.tolist()
        assert pattern.canvas_length or vocabulary.mask_id not in sequence.canvas


@pytest.mark.parametrize("name", ["tiny-dream", "tiny-sdar"])
@pytest.mark.parametrize("decoder", ["asynclane", "fast-dllm", "llada"])
def test_embedded_models_answer_as_on_the_cpu(name: str, decoder: str, vocabulary: Vocabulary) -> None:
    directory = EMBEDDED / name
    config = read_config(directory)
    pattern = config.pattern
    specs = [Spec(prompt, 32, decoder) for prompt in FAMILY_PROMPTS]
    answers = [
        [sequence.canvas.tolist() for sequence in run(runner, vocabulary, specs, pattern=pattern)]
        for runner in (embedded_runner("float32", device, directory) for device in ("cpu", "cuda"))
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("keep", [1, 3, 6])
def test_the_positions_that_go_on_are_those_that_go_on_on_the_cpu(keep: int) -> None:
    """In a step of several requests, one of which leaves out nothing, and in a step of each alone."""
    config = read_config(EMBEDDED / "tiny-sdar")
    block, mask = config.block_size, config.mask_id
    placements, prompts, rows = [], [], []
    for slot, prompt in enumerate(FAMILY_PROMPTS):
        start = len(prompt) // block * block
        tokens = np.array([*prompt, *[mask] * (start + 2 * block - len(prompt))], np.int32)
        end = len(tokens)
        tokens[end - block + 1 : end : 3] = np.resize(np.array(prompt, np.int32), -(-(block - 1) // 3))
        placements.append(Placement(slot, tokens, tuple(range(slot * 64, slot * 64 + -(-end // LIMITS.page_size)))))
        prompts.append(Row(slot, 0, end, end, (), GREEDY, 0))
        candidates = np.flatnonzero(tokens[end - block :] == mask).astype(np.int32) + end - block
        cached = np.setdiff1d(np.arange(end - block + 2, end), candidates).astype(np.int32)
        row = Row(slot, end - block, end, end, (Span(end - block, end, DeviceCommitRule(1, 0.9)),), GREEDY, 1)
        rows.append(row if slot == 1 else row._replace(selection=Selection(keep, candidates, cached)))
    found = []
    for device in ("cpu", "cuda"):
        for steps in ([tuple(rows)], [(row,) for row in rows]):
            runner = embedded_runner("float32", device, EMBEDDED / "tiny-sdar")
            runner.execute(StepPlan(tuple(placements), tuple(prompts)))
            results = [runner.execute(StepPlan((), step)) for step in steps]
            names = "proposals", "tokens", "confidence"
            found.append([np.concatenate([getattr(result, name) for result in results]) for name in names])
    for proposals, tokens, confidence in found[1:]:
        assert proposals.tolist() == found[0][0].tolist()
        assert tokens.tolist() == found[0][1].tolist()
        np.testing.assert_allclose(confidence, found[0][2], atol=1e-4)
    assert (found[0][0] != mask).sum() >= keep * (len(rows) - 1)
