"""Number formats: each answers, and settings that exclude each other are refused with one line."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from asynclane.kernels.common.types import Fp8Heads, Fp8Matrix
from asynclane.models.checkpoint import registry
from asynclane.models.checkpoint.config import ModelConfig, ModelError, read_config
from asynclane.models.checkpoint.families import tensor_shapes
from asynclane.models.checkpoint.registry import Hardware, load_runner
from asynclane.models.exec import memory as memory_module
from asynclane.models.exec.memory import Memory, pages_that_fit, require_room, weights_bytes
from asynclane.models.kv_cache import KvPages
from asynclane.models.network import Transformer, allocate
from asynclane.models.numerics import Numerics
from asynclane.scheduler.decoding.vocabulary import Vocabulary

from ..support.cases import CHATS, TEXT, cases
from ..support.checkpoints import write_checkpoint
from ..support.driver import MODEL, Spec, embedded_runner, run

GIB = 2**30
GPU = torch.device("cuda")
BFLOAT16 = Numerics(torch.bfloat16)
MEMORY = Memory(slots=8, page_size=16, step_tokens=512)


def load(hardware: Hardware, memory: Memory = MEMORY) -> None:
    load_runner(MODEL, read_config(MODEL), memory, hardware, [1])


@pytest.fixture
def config() -> ModelConfig:
    return read_config(MODEL)


def test_a_deterministic_answer_in_bfloat16_is_the_same_batched_with_others(vocabulary: Vocabulary) -> None:
    some = list(cases("tiny-llada").values())[:2]
    for cache, specs in (("auto", some), ("fp8", some)):
        runner = embedded_runner("bfloat16", deterministic=True, kv_cache_dtype=cache)
        for spec, answer in zip(specs, run(runner, vocabulary, specs), strict=True):
            (alone,) = run(runner, vocabulary, [spec])
            assert alone.canvas.tolist() == answer.canvas.tolist()


@pytest.mark.parametrize(
    "numerics",
    [{"dtype": "bfloat16"}, {"quantization": "fp8"}, {"dtype": "bfloat16", "kv_cache_dtype": "fp8"}],
    ids=str,
)
def test_it_knows_the_capital_of_france_in_every_number_format(
    numerics: dict[str, str], vocabulary: Vocabulary
) -> None:
    (answer,) = run(embedded_runner(**numerics), vocabulary, [Spec(CHATS[0], 64)])
    assert TEXT.decode(answer.text) == "The capital of France is Paris."


def test_fp8_halves_the_matrices_of_the_blocks_and_leaves_the_head(config: ModelConfig) -> None:
    weights, _ = allocate(config, Numerics(torch.bfloat16, fp8=True), torch.device("cpu"))
    assert isinstance(weights.blocks[0].mlp.gate_up, Fp8Matrix)
    assert weights.head.dtype is weights.blocks[0].attn_norm.dtype is torch.bfloat16


def test_the_weights_are_counted_as_they_are_kept(config: ModelConfig) -> None:
    """FP8 keeps a byte of each number in the blocks' matrices, and a scale of four for each output channel."""
    shapes = tensor_shapes(config)
    matrices = [shape for name, shape in shapes.items() if ".blocks." in name and len(shape) == 2]
    numbers, channels = sum(rows * columns for rows, columns in matrices), sum(rows for rows, _ in matrices)
    half = 2 * sum(math.prod(shape) for shape in shapes.values())
    assert weights_bytes(config, Numerics(torch.bfloat16)) == half
    assert weights_bytes(config, Numerics(torch.bfloat16, fp8=True)) == half - numbers + 4 * channels


@pytest.mark.parametrize(
    ("hardware", "message"),
    [
        (Hardware("cpu", quantization="fp8", deterministic=True), "quantization fp8 cannot be deterministic"),
        (Hardware("cuda"), r"device 'cuda' cannot be used: .* \(or use --device cpu\)"),
    ],
)
def test_what_does_not_go_together_is_said(hardware: Hardware, message: str) -> None:
    if hardware.device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ModelError, match=message):
        load(hardware)


class FakeGpu:
    """The part of torch.cuda that the checks use."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        free: int = 0,
        capability: tuple[int, int] = (9, 0),
        shared: int = 232_448,
    ) -> None:
        answers = {
            "is_available": True,
            "get_device_capability": capability,
            "get_device_name": "a card",
            "get_device_properties": SimpleNamespace(shared_memory_per_block_optin=shared),
            "mem_get_info": (free, 80 * GIB),
            "empty_cache": None,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, lambda *args, answer=answer: answer)


@pytest.mark.parametrize(
    ("gpu", "hardware", "memory", "message"),
    [
        (
            {"capability": (7, 5)},
            {},
            MEMORY,
            r"a card has compute capability 7\.5: 8\.0 is needed \(or use",
        ),
        ({}, {}, Memory(8, 48, 512), "on a GPU --page-size must be a power of two from 16, not 48"),
        (
            {"capability": (8, 6)},
            {"kv_cache_dtype": "fp8"},
            MEMORY,
            r"--kv-cache-dtype fp8 needs compute capability 8\.9: use auto",
        ),
        ({"shared": 101_376}, {"deterministic": True}, MEMORY, r"--deterministic needs 163880 bytes .* has 101376"),
    ],
    ids=["old", "page size", "no fp8", "small chip"],
)
def test_a_gpu_that_cannot_serve_is_refused_before_anything_is_loaded(
    gpu: dict[str, Any], hardware: dict[str, Any], memory: Memory, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeGpu(monkeypatch, **gpu)
    with pytest.raises(ModelError, match=message):
        load(Hardware("cuda", **hardware), memory)


def test_a_gpu_without_triton_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGpu(monkeypatch)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"Triton is missing: in the checkout, pip install .* '\.\[gpu\]'"):
        load(Hardware("cuda"))


def busy(*args: object) -> None:
    raise RuntimeError("CUDA error: all CUDA-capable devices are busy\nmore")


@pytest.mark.parametrize(
    ("call", "answer", "reason"),
    [
        ("get_device_capability", lambda *args: (7, 5), "a card has compute capability 7.5"),
        ("mem_get_info", busy, "the GPU cannot be used: CUDA error: all CUDA-capable devices are busy"),
    ],
    ids=["old", "busy"],
)
def test_a_gpu_that_nobody_asked_for_is_passed_by(
    call: str, answer: object, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    FakeGpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, call, answer)
    load(Hardware("auto"))
    assert f"the GPU is not used: {reason}" in caplog.text


def test_a_step_that_leaves_no_memory_says_which_setting_to_lower(config: ModelConfig) -> None:
    def out_of_memory() -> int:
        raise torch.OutOfMemoryError

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(registry, "pages_that_fit", lambda *args: out_of_memory())
        with pytest.raises(ModelError, match=r"a step of 512 positions .*: lower --max-step-tokens"):
            load(Hardware("cpu"))


def test_weights_that_do_not_fit_are_refused_with_both_numbers(
    monkeypatch: pytest.MonkeyPatch, config: ModelConfig
) -> None:
    FakeGpu(monkeypatch, free=8 * GIB)
    require_room(config, Numerics(torch.bfloat16), 0.95, GPU)
    monkeypatch.setattr(memory_module, "weights_bytes", lambda *args: 15 * GIB)
    with pytest.raises(ModelError, match=r"the weights need 15\.00 GiB and 4\.00 GiB of the GPU may be taken"):
        require_room(config, Numerics(torch.bfloat16), 0.95, GPU)


def network_of(config: ModelConfig, numerics: Numerics = BFLOAT16) -> Transformer:
    """A network that takes no memory."""
    return Transformer(config, numerics, allocate(config, numerics, torch.device("meta"))[0])


def test_pages_take_what_weights_and_workspace_leave(monkeypatch: pytest.MonkeyPatch, config: ModelConfig) -> None:
    FakeGpu(monkeypatch, free=10 * GIB)
    network, memory = network_of(config), Memory(1 << 14, 64, 512, share=0.9)
    footprint = pages_that_fit(network, 7, memory, GPU, lambda: GIB)
    assert footprint.weights_bytes == 7
    assert footprint.workspace_bytes == GIB
    assert GIB - footprint.page_bytes < footprint.pages_bytes <= GIB  # 10 free, 8 kept from us, 1 for the workspace
    FakeGpu(monkeypatch, free=60 * GIB)
    few = pages_that_fit(network, 7, Memory(4, 64, 512), GPU, lambda: GIB)
    assert few.pages == 4 * config.max_model_len // 64, "no more than all requests could fill"


@pytest.mark.parametrize("architecture", ["DreamModel", "LLaDA2MoeModelLM"])
def test_in_fp8_a_page_has_a_byte_for_each_number_and_four_for_each_head_of_a_position(
    architecture: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = read_config(write_checkpoint(tmp_path, architecture))
    plain, rounded = Numerics(torch.bfloat16), Numerics(torch.bfloat16, fp8_cache=True)
    heads = 2 * config.layers * config.kv_heads * 64
    assert KvPages.page_bytes(config, 64, plain) == heads * config.head_dim * 2
    assert KvPages.page_bytes(config, 64, rounded) == heads * (config.head_dim + 4)
    pages = KvPages(config, 3, 64, 1, rounded, torch.device("cpu"))
    kept = [kv for kv in (*pages.keys, *pages.values) if isinstance(kv, Fp8Heads)]
    assert sum(kv.numbers.nbytes + kv.scales.nbytes for kv in kept) == 3 * KvPages.page_bytes(config, 64, rounded)

    FakeGpu(monkeypatch, free=10 * GIB)
    memory = Memory(1 << 16, 64, 512, share=0.9)
    most, more = (
        pages_that_fit(network_of(config, numerics), 0, memory, GPU, lambda: 0).pages for numerics in (plain, rounded)
    )
    assert more == pytest.approx(most * 2 * config.head_dim / (config.head_dim + 4), abs=2)


def test_pages_in_fp8_are_copied_with_their_scales(config: ModelConfig) -> None:
    pages = KvPages(config, 3, 16, 1, Numerics(torch.float32, fp8_cache=True), torch.device("cpu"))
    for kv in (*pages.keys, *pages.values):
        assert isinstance(kv, Fp8Heads)
        kv.numbers[1], kv.scales[1] = 2, 0.5
    pages.copy(torch.tensor([1]), torch.tensor([2]))
    for kv in (*pages.keys, *pages.values):
        assert isinstance(kv, Fp8Heads)
        assert [(kv.numbers[page].float() * kv.scales[page, 0, 0]).mean().item() for page in range(3)] == [0, 1, 1]


def test_more_cache_than_fits_is_refused_with_what_would_fit(
    monkeypatch: pytest.MonkeyPatch, config: ModelConfig
) -> None:
    FakeGpu(monkeypatch, free=10 * GIB)
    memory = Memory(64, 64, 512, cache_tokens=1 << 24)
    with pytest.raises(ModelError, match=r"of 16777216 positions need .* room for \d+ positions: lower"):
        pages_that_fit(network_of(config), 7, memory, GPU, lambda: GIB)
