"""The memory that is computed for a GPU's steps is that of the tensors that its operations make, and was measured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from asynclane.bench.report import RESULTS
from asynclane.bench.steps.shapes import SHAPES
from asynclane.kernels.common.types import Routing
from asynclane.models.checkpoint.canvas import CanvasNetwork, Heads
from asynclane.models.checkpoint.config import Experts, ModelConfig, read_config
from asynclane.models.checkpoint.registry import find_model
from asynclane.models.exec import pack
from asynclane.models.exec.memory import step_bytes
from asynclane.models.exec.runner import Runner
from asynclane.models.exec.shapes import ShapeSet, default_sizes
from asynclane.models.gemma import network_of
from asynclane.models.kv_cache import KvPages
from asynclane.models.network import allocate
from asynclane.models.numerics import Numerics

from ..support.counted import META, as_on_a_gpu, counted_bytes
from ..support.scale import crossed

SLOTS, PAGE, CONTEXT = 64, 16, 4096
NUMERICS = Numerics(torch.bfloat16)
MEASURED = {
    "llada-8b": "memory",
    "dream-7b": "memory-dream-7b",
    "sdar-8b": "memory-sdar-8b",
    "llada-moe-7b": "memory-llada-moe-7b",
    "llada2-mini": "memory-llada2-mini",
}


def diffusion_gemma(size: int, layers: int, vocabulary: int, canvas: int) -> ModelConfig:
    """A network of DiffusionGemma's kind, with layers `size` times as wide as the smallest."""
    sliding = Heads(kv_heads=2, head_dim=8 * size, rope_theta=1e4, rotated=4 * size, window=1024)
    full = Heads(kv_heads=1, head_dim=16 * size, rope_theta=1e6, rotated=2 * size, shared=True)
    every = tuple(layer for layer in range(layers) if layer % 6 == 5 or layer == layers - 1)
    return ModelConfig(
        "DiffusionGemmaForBlockDiffusion",
        dim=88 * size,
        layers=layers,
        heads=16,
        kv_heads=2,
        ff_dim=66 * size,
        vocab_size=vocabulary,
        max_model_len=CONTEXT,
        norm_eps=1e-6,
        rope_theta=1e4,
        tied_head=True,
        mask_id=0,
        head_dim=8 * size,
        qk_norm=True,
        block_size=1,
        experts=Experts(32, 22 * size, Routing(8, normed=True)),
        canvas=CanvasNetwork(canvas, 30.0, sliding, full, every),
    )


CONFIGS = {
    **{name: replace(config, max_model_len=CONTEXT) for name, config in SHAPES.items() if name != "small"},
    **{name: read_config(find_model(name)) for name in ("tiny-llada", "tiny-sdar")},
    "small canvases": diffusion_gemma(2, 6, 1408, 16),
    "canvases": diffusion_gemma(32, 12, 262144, 256),
}


@pytest.mark.parametrize(("name", "tokens"), crossed(CONFIGS, [1024, 8192]))
def test_the_memory_of_a_step_is_that_of_the_tensors_that_its_operations_make(
    name: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_on_a_gpu(monkeypatch)
    config = CONFIGS[name]
    weights, _ = allocate(config, NUMERICS, META)
    pages = KvPages(config, 1, PAGE, SLOTS, NUMERICS, META)
    runner = Runner(network_of(config, NUMERICS, weights), pages, SLOTS, [config.mask_id], [1])
    shapes = ShapeSet(config, NUMERICS, SLOTS, default_sizes(tokens))
    tails = [tail for tail in shapes.tails() if tail.projected in (tokens, 1024)]
    plain = [tail for tail in tails if not tail.inputs.kept_projected]
    body, *counted = counted_bytes(runner, shapes.body(tokens), plain)
    found = step_bytes(config, NUMERICS, SLOTS, tokens, PAGE)
    assert found.body == pytest.approx(body, rel=0.05)
    assert max(found.last, found.logits) == pytest.approx(max(counted), rel=0.05)
    if shapes.selects:  # of which all go on: the most that a step with a selection takes
        body, *counted = counted_bytes(runner, shapes.body(tokens, kept=tokens), [t for t in tails if t not in plain])
        assert found.body == pytest.approx(body, rel=0.05)
        assert max(found.last, found.logits) == pytest.approx(max(counted), rel=0.05)


@pytest.mark.parametrize("name", MEASURED)
def test_the_memory_of_weights_and_steps_is_what_a_gpu_took(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it was measured, all logits of a step were in memory at once."""
    monkeypatch.setattr(pack, "LOGIT_ROWS", 4096)
    measured = json.loads((RESULTS / f"{MEASURED[name]}.json").read_text())
    step = step_bytes(CONFIGS[name], NUMERICS, SLOTS, 4096, PAGE)
    taken = measured["peak_reserved_bytes"] - measured["pages_bytes"]
    assert measured["weights_bytes"] + step.workspace == pytest.approx(taken, rel=0.05)
    assert step.workspace == pytest.approx(taken - measured["weights_bytes"], rel=0.1)
