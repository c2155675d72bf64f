"""Answers the questions of `bench.quality.openers`, one token a forward, without a cache and without grammars.

What counts comes from that program, on the server's own engine; this one runs right after the training.
"""

from __future__ import annotations

import json
import sys

import torch
from tokenizers import Tokenizer

from ..bench.quality.openers import Questions, good_call, good_text, questions, right_values
from .chat.conversation import Conversation
from .chat.write import ChatWriter
from .network import Network
from .probe import CANVAS, ENDS, decode


@torch.inference_mode()
def conversation_shares(network: Network, tokenizer: Tokenizer) -> dict[str, float]:
    """Shares of sensible answers; writes every answer, with a mark before those that are not."""
    asked: Questions = questions()
    first = [Conversation((("user", row.ask),), "") for row in asked.openers]
    started = [Conversation((("user", row.first),), "") for row in asked.second_turns]
    # Without a grammar the schema must be in the conversation.
    schemas = [
        Conversation((("system", f"JSON schema: {json.dumps(row.schema)}"), ("user", row.ask)), "")
        for row in asked.schemas
    ]
    tools = [Conversation((("user", row.ask),), "", tuple(row.tools)) for row in asked.tools]
    texts = answers(network, tokenizer, [*first, *started, *schemas, *tools])
    at = iter(texts)  # in the order of the checks that follow
    scores = {"openers": [good_text(row.any, next(at)) for row in asked.openers]}
    second = [
        Conversation((("user", row.first), ("assistant", next(at)), ("user", row.then)), "")
        for row in asked.second_turns
    ]
    again = answers(network, tokenizer, second)
    scores["second turns"] = [good_text(row.any, text) for row, text in zip(asked.second_turns, again, strict=True)]
    scores["JSON"] = [right_values(row, next(at)) for row in asked.schemas]
    scores["tools"] = [good_call(row, next(at)) for row in asked.tools]
    shown = [*(c.messages[-1][1] for c in [*first, *second, *schemas, *tools])]
    said = [*texts[: len(first)], *again, *texts[len(first) + len(started) :]]
    flat = [good for part in scores.values() for good in part]
    for question, text, good in zip(shown, said, flat, strict=True):
        sys.stdout.write(f"{'  ' if good else '! '}{question!r} -> {text!r}\n")
    return {part: sum(found) / len(found) for part, found in scores.items()}


def answers(network: Network, tokenizer: Tokenizer, conversations: list[Conversation]) -> list[str]:
    writer = ChatWriter(tokenizer)
    prompts = [writer.prompt(conversation) for conversation in conversations]
    canvases = decode(network, prompts, network.embedding.weight.device)
    found = []
    for prompt, ids in zip(prompts, canvases.tolist(), strict=True):
        answer = ids[len(prompt) : len(prompt) + CANVAS]
        stop = next((i for i, token in enumerate(answer) if token in ENDS), len(answer))
        found.append(tokenizer.decode(answer[:stop]))
    return found
