"""Checkpoints of every shape that is measured say of themselves what the shape is, and are served."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from asynclane.bench.steps import checkpoint
from asynclane.bench.steps.offline import Load, plan_of
from asynclane.bench.steps.shapes import SHAPES
from asynclane.models.checkpoint.canvas import Heads
from asynclane.models.checkpoint.config import ModelConfig, read_config
from asynclane.models.checkpoint.families import tensor_shapes
from asynclane.server.engine.messages import AnswerOptions
from asynclane.server.engine.offline import Offline
from asynclane.server.settings import Settings


def small(config: ModelConfig) -> ModelConfig:
    """The same network with fewer and narrower layers."""
    experts = config.experts
    if experts is not None:
        experts = replace(experts, count=16, ff_dim=32, shared_ff_dim=32 if experts.shared_ff_dim else 0)
    return replace(
        config,
        dim=64,
        layers=2,
        heads=4,
        kv_heads=4 if config.kv_heads == config.heads else 2,
        ff_dim=32 if config.architecture == "LLaDAMoEModelLM" else 96,
        vocab_size=1408,
        mask_id=5,
        max_model_len=256,
        head_dim=16,
        experts=experts,
        canvas=config.canvas
        and replace(
            config.canvas,
            canvas_length=16,
            sliding=Heads(2, 16, 10000.0, 8, window=8),
            full=Heads(1, 32, 1000000.0, 4, shared=True),
            full_layers=(1,),
        ),
    )


@pytest.mark.parametrize(
    ("shape", "billions"),
    [
        *(("llada-8b", 8.02), ("dream-7b", 7.62), ("sdar-8b", 8.19), ("llada2-mini", 16.26), ("llada-moe-7b", 7.36)),
        *(("fast-dllm-v2-7b", 7.62), ("wedlm-8b", 8.19), ("diffusion-gemma-26b", 25.26)),
    ],
)
def test_a_shape_is_read_back_as_written_with_as_many_parameters_as_the_published_network(
    shape: str, billions: float, tmp_path: Path
) -> None:
    config = SHAPES[shape]
    (tmp_path / "config.json").write_text(json.dumps(checkpoint.CONFIGS[config.architecture](config)), encoding="utf-8")
    assert replace(read_config(tmp_path), block_source="") == config
    count = sum(torch.Size(size).numel() for size in tensor_shapes(config).values())
    assert count / 1e9 == pytest.approx(billions, abs=0.01)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_checkpoint_of_each_shape_is_served(shape: str, tmp_path: Path) -> None:
    if shape == "small":
        assert checkpoint.main([str(tmp_path), "--shape", shape]) == 0
    else:
        checkpoint.write(tmp_path, small(SHAPES[shape]), torch.device("cpu"))
    with Offline(Settings(model=str(tmp_path), device="cpu", kv_cache_tokens=4096)) as offline:
        (answer,) = offline.answer([[100, 101, 102]], AnswerOptions(8))
    assert answer.usage.completion_tokens <= 8
    assert all(word.startswith("w") or word == "." for word in answer.text.split())


def test_a_row_asks_only_for_positions_that_it_can_predict() -> None:
    load = Load("mixed", ((32, 512), (1024, 1024)))
    (first, *_), (_, second) = plan_of(load, 0).rows, plan_of(load, 0, shift=1).rows
    assert (first.start, first.spans[0].start, first.spans[0].end) == (480, 480, 512)
    assert (second.start, second.spans[0].start, second.spans[0].end) == (0, 960, 1024)
    assert plan_of(load, 0, shift=1).rows[0].spans[0].start == 481
