"""Each family's logits are those of the network it was published with, within 1e-4 in float32.

Where transformers has the network, its own code is the truth, with the mask written out; else plain torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from asynclane.models.checkpoint.config import read_config
from asynclane.models.checkpoint.registry import Hardware, load_runner
from asynclane.models.checkpoint.weights import SINGLE
from asynclane.models.exec.memory import Memory, weights_bytes
from asynclane.models.exec.runner import Runner
from asynclane.models.numerics import Numerics
from asynclane.scheduler.contract import StepPlan
from asynclane.server.engine.wiring import build_parts
from asynclane.server.settings import Settings

from ..support.checkpoints import CONFIGS, write_checkpoint
from ..support.families import IDS, LENGTH, logits, placed, row
from ..support.llada2 import llada2_logits


def runner_of(directory: Path, **hardware: Any) -> Runner:
    memory = Memory(slots=4, page_size=16, step_tokens=128, cache_tokens=512)
    return load_runner(directory, read_config(directory), memory, Hardware("cpu", **hardware), [1]).runner


def block_mask(length: int, block: int) -> Tensor:
    """[1, 1, length, length] bool: which keys each query sees; all of them without blocks."""
    position = torch.arange(length)
    seen = torch.full((length,), length) if not block else (position // block + 1) * block
    return (position < seen[:, None])[None, None]


def published(
    directory: Path, model: str, ids: list[int], block: int = 0, positions: list[int] | None = None, **words: Any
) -> Tensor:
    """Logits of a network of transformers, whose configuration may need other words than the checkpoint's. The ids may
    have `positions` that do not ascend."""
    said = json.loads((directory / "config.json").read_text()) | words
    config = getattr(transformers, f"{model}Config")(**said)
    network_class = getattr(transformers, f"{model}ForCausalLM")
    network = network_class.from_pretrained(directory, config=config, attn_implementation="eager", dtype="float32")
    mask = torch.zeros(1, 1, len(ids), len(ids)).masked_fill(~block_mask(len(ids), block), float("-inf"))
    with torch.inference_mode():
        at = None if positions is None else torch.tensor([positions])
        return network(input_ids=torch.tensor([ids]), attention_mask=mask, position_ids=at).logits[0]


# LLaDA-MoE is Qwen3-MoE in other words: heads that divide the dimension, weights that are not normed.
BIASED = {"attention_bias": True, "qk_norm": False, "kv_heads": 1}
LLADA_MOE = {"moe_intermediate_size": 32, "head_dim": 32, "norm_topk_prob": False, "intermediate_size": 96}
PUBLISHED: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("DreamModel", "Qwen2", {"tied": True, "kv_heads": 1}, {}),
    ("DreamModel", "Qwen2", {"heads": 7, "kv_heads": 7, "layers": 1}, {}),
    ("Fast_dLLM_QwenForCausalLM", "Qwen2", {"tied": True, "block": 8}, {"block": 8}),
    ("StableDiffcoderForCausalLM", "Llama", {"kv_heads": 1}, {"block": 4}),
    ("SDARForCausalLM", "Qwen3", {"tied": True, "block": 16}, {"block": 16}),
    ("SDARForCausalLM", "Qwen3", {"head_dim": 32, "dim": 48, "block": 1}, {"block": 1}),
    ("SDARMoeForCausalLM", "Qwen3Moe", {"norm_topk_prob": False, "chosen": 1}, {"block": 4}),
    ("SDARMoeForCausalLM", "Qwen3Moe", {"experts": 6, "block": 16}, {"block": 16}),
    ("LLaDAMoEModelLM", "Qwen3Moe", {"head_dim": 32}, LLADA_MOE),
    ("WeDLMForCausalLM", "Qwen3", {"tied": True, "head_dim": 32}, {"block": 1}),
    ("WeDLMForCausalLM", "Qwen2", BIASED, {"block": 1}),
    ("Qwen2ForCausalLM", "Qwen2", {"tied": True, "kv_heads": 1}, {"block": 1}),
    ("Qwen3ForCausalLM", "Qwen3", {"head_dim": 32, "dim": 48}, {"block": 1}),
    ("Qwen3MoeForCausalLM", "Qwen3Moe", {"experts": 6}, {"block": 1}),
]


@pytest.mark.parametrize(("name", "model", "sizes", "words"), PUBLISHED, ids=str)
def test_logits_are_those_of_the_published_network(
    tmp_path: Path, name: str, model: str, sizes: dict[str, Any], words: dict[str, Any]
) -> None:
    """Without a causal mask, or within blocks."""
    write_checkpoint(tmp_path, name, **sizes)
    want = published(tmp_path, model, IDS, **words)
    torch.testing.assert_close(logits(runner_of(tmp_path), IDS), want, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("model", "sizes"), [("Qwen3", {}), ("Qwen2", BIASED)], ids=str)
def test_wedlm_is_causal_over_known_tokens_and_then_masks(tmp_path: Path, model: str, sizes: dict[str, Any]) -> None:
    """Keys are rotated as their own positions. A later step reads what this one has stored."""
    write_checkpoint(tmp_path, "WeDLMForCausalLM", **sizes)
    runner, start = runner_of(tmp_path), 16
    ids = [5 if number > start and number % 3 else token for number, token in enumerate(IDS)]
    order = sorted(range(LENGTH), key=lambda position: ids[position] == 5)
    got = logits(runner, ids, np.array(order, np.int32))
    want = published(tmp_path, model, [ids[at] for at in order], 1, order)
    torch.testing.assert_close(got[order], want, atol=1e-4, rtol=0)
    rest = row(runner, 0, start, LENGTH)._replace(order=np.array(order[start:], np.int32))
    assert torch.equal(runner.logits(StepPlan((), (rest,))), got[start:])


def test_an_order_has_each_position_of_its_row_once(tmp_path: Path) -> None:
    runner = runner_of(write_checkpoint(tmp_path, "WeDLMForCausalLM"))
    with pytest.raises(ValueError, match="each position of its row once"):
        logits(runner, IDS, np.array([0, *range(LENGTH - 1)], np.int32))


def test_wedlms_mask_and_flags_are_the_published_ones_unless_the_checkpoint_says_others(tmp_path: Path) -> None:
    config = read_config(write_checkpoint(tmp_path, "WeDLMForCausalLM", **BIASED))
    assert (config.qkv_bias, config.qk_norm, config.mask_id) == (True, False, 5)
    said = json.loads((tmp_path / "config.json").read_text())
    silent = {key: said[key] for key in said.keys() - {"mask_token_id", "attention_bias", "qk_norm"}}
    (tmp_path / "config.json").write_text(json.dumps(silent | {"vocab_size": 151936}))
    (tmp_path / "tokenizer_config.json").unlink()
    config = read_config(tmp_path)
    assert (config.qkv_bias, config.qk_norm, config.mask_id) == (True, False, 151665)


@pytest.mark.parametrize(
    "sizes",
    [{}, {"groups": 1, "live_groups": 1}, {"first_k_dense_replace": 0, "num_shared_experts": 0}, {"chosen": 1}],
    ids=str,
)
def test_llada2s_logits_are_those_of_its_published_code(tmp_path: Path, sizes: dict[str, Any]) -> None:
    write_checkpoint(tmp_path, "LLaDA2MoeModelLM", **sizes)
    want = llada2_logits(tmp_path, IDS, block_mask(LENGTH, 4)[0, 0])
    torch.testing.assert_close(logits(runner_of(tmp_path), IDS), want, atol=1e-4, rtol=0)


def test_llada2s_blocks_have_the_published_size_unless_the_checkpoint_says_another(tmp_path: Path) -> None:
    assert read_config(write_checkpoint(tmp_path / "a", "LLaDA2MoeModelLM", block_size=None)).block_size == 32
    other = write_checkpoint(tmp_path / "b", "LLaDA2MoeModelLM", block_size=None, block_length=8)
    assert read_config(other).block_size == 8


ARCHITECTURES = tuple(CONFIGS)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: write_checkpoint(tmp_path_factory.mktemp(name), name) for name in ARCHITECTURES}


@pytest.mark.parametrize("hardware", [{}, {"dtype": "bfloat16", "deterministic": True}], ids=str)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_rows_logits_have_the_same_bits_alone_and_beside_others(
    checkpoints: dict[str, Path], name: str, hardware: dict[str, Any]
) -> None:
    runner = runner_of(checkpoints[name], **hardware)
    asked = [IDS, IDS[::-1][:20], IDS[5:30], IDS[:1]]
    rows = tuple(row(runner, slot, 0, len(ids)) for slot, ids in enumerate(asked))
    together = runner.logits(StepPlan(tuple(placed(slot, ids) for slot, ids in enumerate(asked)), rows))
    for got, ids in zip(together.split([len(ids) for ids in asked]), asked, strict=True):
        assert torch.equal(got, logits(runner, ids))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_positions_computed_after_the_ones_before_them_have_the_same_logits(
    checkpoints: dict[str, Path], name: str
) -> None:
    """A cached step reads of its pages what the step before wrote there. With blocks, nothing after one changes it."""
    runner, start = runner_of(checkpoints[name]), 16
    whole = logits(runner, IDS)
    later = runner.logits(StepPlan((), (row(runner, 0, start, LENGTH),)))
    torch.testing.assert_close(later, whole[start:], atol=1e-5, rtol=0)
    if block := read_config(checkpoints[name]).block_size:
        assert start % block == 0
        changed = IDS[:start] + [9] * (LENGTH - start)
        torch.testing.assert_close(logits(runner, changed)[:start], whole[:start], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_fp8_stays_near_every_familys_logits(checkpoints: dict[str, Path], name: str) -> None:
    want = logits(runner_of(checkpoints[name]), IDS)
    got = logits(runner_of(checkpoints[name], quantization="fp8"), IDS)
    assert not torch.equal(got, want)
    # With random weights some tokens change an expert.
    assert torch.cosine_similarity(got, want, dim=-1).mean() > 0.95


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_weights_are_counted_as_they_are_kept(checkpoints: dict[str, Path], name: str) -> None:
    config = read_config(checkpoints[name])
    stored = load_file(checkpoints[name] / SINGLE)
    shared = [layer for layer in range(config.layers) if config.heads_of(layer).shared]  # keys make values, too
    twice = sum(tensor.nbytes for key, tensor in stored.items() for at in shared if f"{at}.self_attn.k_proj" in key)
    total = sum(tensor.nbytes for tensor in stored.values()) + twice
    assert weights_bytes(config, Numerics(torch.float32)) == total
    routers = ".mlp.gate.", ".router.proj.", ".per_expert_scale"  # they stay in float32
    exact = sum(tensor.nbytes for key, tensor in stored.items() if any(name in key for name in routers))
    half = (total - exact) // 2
    assert weights_bytes(config, Numerics(torch.bfloat16)) == half + exact


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_server_starts_with_every_family(checkpoints: dict[str, Path], name: str) -> None:
    settings = Settings(model=str(checkpoints[name]), max_num_seqs=2, max_step_tokens=64, max_model_len=64)
    parts = build_parts(settings)
    assert parts.limits.max_model_len == 64
    assert parts.footprint.weights_bytes == weights_bytes(read_config(checkpoints[name]), Numerics(torch.float32))
