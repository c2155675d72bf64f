"""Small random checkpoints of Qwen's own networks, as transformers writes them, and the text that its code gives."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import transformers

from asynclane.models.checkpoint.registry import EMBEDDED

from .checkpoints import TOKENIZER

NETWORKS = ("Qwen2", "Qwen3", "Qwen3Moe")
MASK = 5  # of the tokenizer of the embedded models
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}


def write_causal(directory: Path, name: str = "Qwen3", seed: int = 0, **sizes: Any) -> Any:
    """Write a checkpoint of `name` with tiny-llada's tokenizer. Returns the network of transformers that is in it."""
    torch.manual_seed(seed)
    words = {
        "vocab_size": 1408,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,  # else all answers are one token again and again
        "eos_token_id": 1,
        "pad_token_id": 1,
    }
    words |= EXPERTS if name == "Qwen3Moe" else {}
    config = getattr(transformers, f"{name}Config")(**words | sizes)
    network = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    network.save_pretrained(directory)
    for file in TOKENIZER:
        shutil.copy(EMBEDDED / "tiny-llada" / file, directory / file)
    return network


def greedy(network: Any, prompt: list[int], tokens: int) -> list[int]:
    """The likeliest tokens after a prompt, one after the other, each from all that is before it. None is a mask."""
    ids = list(prompt)
    for _ in range(tokens):
        with torch.no_grad():
            logits = network(torch.tensor([ids])).logits[0, -1].clone()
        logits[MASK] = -torch.inf
        ids.append(int(logits.argmax()))
    return ids[len(prompt) :]
