"""Measures tiny-prose in plain torch: tokens that a forward commits at a threshold, on reserved passages."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer

from ..bench.quality.prose import prompts
from .corpus import Writer
from .network import Network
from .probe import CANVAS, ENDS, Look, decode, surest

THRESHOLD = 0.9


def sure(look: Look) -> torch.Tensor:
    """Tokens as sure as the threshold commit, and where none is, the surest."""
    return torch.where(look.eligible & (look.confidence >= THRESHOLD), look.tokens, surest(look))


@torch.inference_mode()
def tokens_a_forward(network: Network, tokenizer: Tokenizer, count: int, directory: Path) -> dict[str, float]:
    """Tokens of the answers over forwards, and tokens an answer, of the first `count` passages, or of all."""
    writer = Writer(tokenizer)
    messages = [writer.prompt(text) for text in prompts(directory)[:count]]
    forwards = 0

    def watch(look: Look) -> None:
        nonlocal forwards
        forwards += len(look.rows)

    canvases = decode(network, messages, network.embedding.weight.device, watch, sure).tolist()
    answers = [ids[len(prompt) : len(prompt) + CANVAS] for prompt, ids in zip(messages, canvases, strict=True)]
    tokens = sum(next((i + 1 for i, token in enumerate(answer) if token in ENDS), CANVAS) for answer in answers)
    return {"tokens a forward at 0.9": tokens / forwards, "tokens an answer": tokens / len(messages)}
