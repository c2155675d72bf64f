"""Measures a network while it is in training: it answers problems, one token a forward, without a cache.

Figures that count come from `bench.quality`, on the server's own engine; this one runs beside the training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from ..bench.load.problems import TASKS, problems
from ..bench.quality.checks import right
from .corpus import MARKS, Writer
from .network import Network

CANVAS = 256  # positions for an answer
BLOCK = 32  # of a bidirectional model; blocks are filled from left to right, those of a block-causal one on its grid
ENDS = (MARKS.end, MARKS.turn_end)


@torch.inference_mode()
def accuracy(network: Network, tokenizer: Tokenizer, count: int, seed: int) -> dict[str, float]:
    """Share of right answers to the first `count` problems of `seed`, of each task and of `all`."""
    asked = problems(seed, count)
    device = network.embedding.weight.device
    writer = Writer(tokenizer)
    prompts = [writer.prompt(problem.prompt) for problem in asked]
    canvases = decode(network, prompts, device)
    scores: dict[str, list[bool]] = {task: [] for task in (*TASKS, "all")}
    for problem, prompt, ids in zip(asked, prompts, canvases.tolist(), strict=True):
        answer = ids[len(prompt) : len(prompt) + CANVAS]
        stop = next((i for i, token in enumerate(answer) if token in ENDS), len(answer))
        good = right(problem, tokenizer.decode(answer[:stop]))
        scores[problem.task].append(good)
        scores["all"].append(good)
    return {task: sum(good) / len(good) for task, good in scores.items() if good}


class Look(NamedTuple):
    """The result of a forward for `rows` [n] of the canvases: the best `tokens` [n, T], their `confidence` [n, T], the
    `entropy` [n, T] in nats, and which positions were `eligible` [n, T], masks of the block in turn."""

    rows: Tensor
    tokens: Tensor
    confidence: Tensor
    entropy: Tensor
    eligible: Tensor


def surest(look: Look) -> Tensor:
    """The tokens that commit, `[n, T]`, masks elsewhere: one token a forward, the surest one."""
    best = look.confidence.masked_fill(~look.eligible, -1.0).argmax(1, keepdim=True)
    return torch.full_like(look.tokens, MARKS.mask).scatter_(1, best, look.tokens.gather(1, best))


def decode(
    network: Network,
    prompts: list[list[int]],
    device: torch.device,
    watch: Callable[[Look], None] | None = None,
    commits: Callable[[Look], Tensor] = surest,
) -> Tensor:
    """Canvases [N, T] with prompts and answers, each at the start of its row; `watch` receives every forward, and
    `commits` returns the tokens that it commits."""
    sizes = torch.tensor([len(prompt) for prompt in prompts], device=device)[:, None]
    length = int(sizes.max()) + CANVAS
    position = torch.arange(length, device=device)[None]
    ids = torch.full((len(prompts), length), MARKS.end, device=device)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt, device=device)
    ids[(position >= sizes) & (position < sizes + CANVAS)] = MARKS.mask
    ends = torch.tensor(ENDS, device=device)
    rows = torch.arange(len(ids), device=device)
    for _ in range(CANVAS):
        open_ = (ids == MARKS.mask)[rows]
        first = open_.int().argmax(1, keepdim=True)
        ended = (torch.isin(ids[rows], ends) & (position >= sizes[rows]) & (position < first)).any(1)
        rows = rows[open_.any(1) & ~ended]  # what has no mask, or an end before its first mask, is done
        if not len(rows):
            break
        open_ = ids[rows] == MARKS.mask
        tokens, confidence, entropy = propose(network, ids[rows], sizes[rows])
        block, origin = (network.shape.block, 0) if network.shape.block else (BLOCK, sizes[rows])
        end = ((open_.int().argmax(1, keepdim=True) - origin) // block + 1) * block + origin
        eligible = open_ & (position < end)
        look = Look(rows, tokens, confidence, entropy, eligible)
        if watch is not None:
            watch(look)
        fresh = commits(look)
        ids[rows] = torch.where(fresh != MARKS.mask, fresh, ids[rows])
    return ids


def propose(network: Network, ids: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best token of every position, its probability, and the entropy in nats: all [N, T]."""
    shape, device = network.shape, ids.device
    position = torch.arange(ids.shape[1], device=device)
    if shape.block:
        blocks = position // shape.block
        mask = (blocks[None, :] <= blocks[:, None])[None, None].expand(len(ids), -1, -1, -1)
    else:
        mask = (position[None] < sizes + CANVAS)[:, None, None].expand(-1, -1, len(position), -1)
    with torch.autocast("cuda", torch.bfloat16, enabled=ids.is_cuda):
        logits = network(ids, position[None], mask)
    if shape.shift:
        logits = logits.roll(1, dims=1)
    logits[..., MARKS.mask] = -torch.inf
    shares = logits.float().softmax(-1)
    confidence, tokens = shares.max(-1)
    return tokens, confidence, torch.special.entr(shares).sum(-1)
