"""A small random DiffusionGemma of transformers' own code, and steps of its canvases."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asynclane.models.checkpoint.config import read_config
from asynclane.models.checkpoint.registry import EMBEDDED, Hardware, load_runner
from asynclane.models.exec.memory import Memory
from asynclane.models.exec.runner import Runner
from asynclane.scheduler.contract import (
    GREEDY,
    Denoising,
    DeviceCommitRule,
    Ints,
    Measure,
    Placement,
    Row,
    Span,
    StepPlan,
)

from .checkpoints import TOKENIZER

WINDOW, CANVAS, VOCABULARY = 8, 4, 128
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "sliding_window": WINDOW,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 24,
    "max_position_embeddings": 512,
    "final_logit_softcapping": 30.0,
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
REPORTS = DeviceCommitRule(sure=0, threshold=float("inf"), measure=Measure.ENTROPY)


def published_gemma(seed: int = 0, feedback: float = 1.0, vocab_size: int = VOCABULARY, canvas: int = CANVAS) -> Any:
    """transformers' network with random weights, none of which is as a new network's: an error would not show.

    `feedback`: the size of what the last step's logits add. At 1 differences in the last bits grow tenfold every two
    steps, until other tokens come.
    """
    # Imported here, since it takes two seconds.
    from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion

    torch.manual_seed(seed)
    config = DiffusionGemmaConfig(
        text_config={**TEXT, "vocab_size": vocab_size},
        vision_config=VISION,
        canvas_length=canvas,
    )
    network = DiffusionGemmaForBlockDiffusion(config).eval()
    with torch.no_grad():
        for weight in network.parameters():
            noise = torch.randn_like(weight)
            weight.copy_(noise * weight.shape[-1] ** -0.5 if weight.dim() > 1 else 1 + noise / 4)
        for name, buffer in network.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.fill_(0.9 if "encoder" in name else 1.1)
        network.model.decoder.self_conditioning.down_proj.weight.mul_(feedback)
    network.tie_weights()
    return network


def write_gemma(directory: Path, network: Any, mask_id: int = 5, **generation: Any) -> Path:
    """The network as transformers saves it, with its images' tower, and tiny-llada's tokenizer."""
    network.save_pretrained(directory)
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mask_token_id": mask_id, "eos_token_id": 1}))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [1]} | generation))
    for name in TOKENIZER:
        shutil.copy(EMBEDDED / "tiny-llada" / name, directory / name)
    return directory


def gemma_runner(directory: Path, **hardware: Any) -> Runner:
    memory = Memory(slots=4, page_size=16, step_tokens=128, cache_tokens=512)
    return load_runner(directory, read_config(directory), memory, Hardware("cpu", **hardware), [1]).runner


def placed(slot: int, ids: Sequence[int]) -> Placement:
    return Placement(slot, np.array(ids, np.int32), tuple(range(4 * slot, 4 * slot + 4)))


def encoded(slot: int, start: int, end: int, tokens: Ints | None = None) -> Row:
    return Row(slot, start, end, end, (), GREEDY, 0, host_tokens=tokens)


def denoised(slot: int, start: int, tokens: Ints, temperature: float, first: bool) -> Row:
    end = start + len(tokens)
    spans = (Span(start, end, REPORTS),)
    return Row(slot, start, end, end, spans, GREEDY, 0, host_tokens=tokens, denoising=Denoising(temperature, first))


def plan(placements: Sequence[Placement], *rows: Row) -> StepPlan:
    return StepPlan(tuple(placements), rows)
