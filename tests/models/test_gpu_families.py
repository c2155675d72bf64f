"""On a GPU every family's logits are the CPU's in float32, and its answers those that each request gets alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from asynclane.models.checkpoint.config import read_config
from asynclane.models.checkpoint.registry import EMBEDDED, Hardware, load_runner
from asynclane.models.exec.memory import Memory
from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import StepPlan
from asynclane.scheduler.decoding.registry import DECODERS
from asynclane.scheduler.decoding.vocabulary import Vocabulary

from ..support.cases import FAMILY_LENGTH, FAMILY_LIMITS, FAMILY_PROMPTS
from ..support.checkpoints import CONFIGS, write_checkpoint
from ..support.driver import FILLING, Spec, embedded_runner, refusal, run
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
