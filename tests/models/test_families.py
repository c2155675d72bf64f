"""Each family's logits are those of the network it was published with, within 1e-4 in float32.

Where transformers has the network, its own code is the truth, with the mask written out; else a twin in plain torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from asynclane.models.config import read_config
from asynclane.models.memory import Memory
from asynclane.models.registry import Hardware, load_runner
from asynclane.models.runner import Runner
from asynclane.scheduler.contract import GREEDY, Placement, Row, Span, StepPlan, Transfer

from ..checkpoints import write_checkpoint

LENGTH = 37
COMMITS_NOTHING = Transfer(sure=0, threshold=2.0)
IDS = [7 + 31 * number % 1000 for number in range(LENGTH)]


def runner_of(directory: Path, **hardware: Any) -> Runner:
    memory = Memory(slots=4, page_size=16, step_tokens=128, cache_tokens=512)
    return load_runner(directory, read_config(directory), memory, Hardware("cpu", **hardware), [1]).runner


def row(slot: int, start: int, end: int) -> Row:
    return Row(slot, start, end, end, (Span(start, end, COMMITS_NOTHING),), GREEDY, step=0)


def placed(slot: int, ids: list[int]) -> Placement:
    return Placement(slot, np.array(ids, np.int32), tuple(range(4 * slot, 4 * slot + 4)))


def logits(runner: Runner, ids: list[int]) -> Tensor:
    """Of every position, in one row."""
    return runner.logits(StepPlan((placed(0, ids),), (row(0, 0, len(ids)),)))


def block_mask(length: int, block: int) -> Tensor:
    """[1, 1, length, length] bool: which keys each query sees; all of them without blocks."""
    position = torch.arange(length)
    seen = torch.full((length,), length) if not block else (position // block + 1) * block
    return (position < seen[:, None])[None, None]


def published(directory: Path, model: str, ids: list[int], block: int = 0) -> Tensor:
    """Logits of a network of transformers."""
    config = getattr(transformers, f"{model}Config").from_pretrained(directory)
    network_class = getattr(transformers, f"{model}ForCausalLM")
    network = network_class.from_pretrained(directory, config=config, attn_implementation="eager", dtype="float32")
    mask = torch.zeros(1, 1, len(ids), len(ids)).masked_fill(~block_mask(len(ids), block), float("-inf"))
    with torch.inference_mode():
        return network(input_ids=torch.tensor([ids]), attention_mask=mask).logits[0]


@pytest.mark.parametrize(
    "sizes", [{}, {"tied": True, "kv_heads": 1}, {"heads": 7, "kv_heads": 7, "layers": 1}], ids=str
)
def test_dreams_logits_are_those_of_qwen2_without_a_causal_mask(tmp_path: Path, sizes: dict[str, Any]) -> None:
    write_checkpoint(tmp_path, "DreamModel", **sizes)
    want = published(tmp_path, "Qwen2", IDS)
    torch.testing.assert_close(logits(runner_of(tmp_path), IDS), want, atol=1e-4, rtol=0)


@pytest.mark.parametrize("sizes", [{}, {"tied": True, "block": 16}, {"head_dim": 32, "dim": 48, "block": 1}], ids=str)
def test_sdars_logits_are_those_of_qwen3_within_blocks(tmp_path: Path, sizes: dict[str, Any]) -> None:
    write_checkpoint(tmp_path, "SDARForCausalLM", **sizes)
    want = published(tmp_path, "Qwen3", IDS, block=sizes.get("block", 4))
    torch.testing.assert_close(logits(runner_of(tmp_path), IDS), want, atol=1e-4, rtol=0)
