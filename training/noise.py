"""Turns clean examples into what a diffusion model sees in the midst of decoding, and weighs what it must fill in.

A bidirectional row is one canvas. Half of the rows are masked evenly, at noise levels spread without gaps over the
batch; half imitate block-wise decoding: clean, then a window in work, then all masks.

A block-causal row is the clean text and, after it, the answer once more with every block at a noise level of its own:
a noisy block sees clean blocks before it, so all blocks of an answer are learnt at once (Arriola et al., Block
Diffusion, arXiv 2503.09573). With a `lag` of n the n blocks before it are seen as noisy as they are, because lanes that
run ahead see unfinished text; that is ours.

Random numbers come from torch's own generators, nothing is copied from the host and nothing waits for the device: all
of it is part of the captured step.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from .corpus import MARKS

LEAST = 0.02  # noise level
LEAST_DIVISOR = 0.05  # rows with hardly a mask must not outweigh all others
TAIL_WEIGHT = 0.15  # of end tokens after an answer
PROMPT_WEIGHT = 0.5
BLOCKWISE = 0.5  # share of rows that imitate block-wise decoding
WHOLE = 0.05  # share of rows whose prompt is masked, too
EARLIER = 0.5  # share of evenly masked rows whose earlier answers are masked, too
TYPICAL, MOST = 40.0, 4.0  # tokens of an answer whose weight `short_first` leaves alone; the largest factor
LEAST_WINDOW, WINDOWS = 8, 4  # positions; so many sizes, each twice the one before
LAGS = (0.55, 0.2, 0.15, 0.1)  # shares of rows whose blocks see so many noisy ones before them


class Rows(NamedTuple):
    """Clean text: ids [B, L] int64, filled up with end tokens; prompt, answer [B, 1]: how long each is; earlier [B, L]
    bool: answers within the prompt, None where nothing is learnt from them."""

    ids: Tensor
    prompt: Tensor
    answer: Tensor
    earlier: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """The network's input: ids, positions [B or 1, T], mask [B, 1, T, T] bool or None; and its targets:
    targets [B, N] with weights [B, N] for its last N positions."""

    ids: Tensor
    positions: Tensor
    mask: Tensor | None
    targets: Tensor
    weights: Tensor


def canvas(rows: Rows, short_first: float = 0.0) -> Seen:
    """A draw for a bidirectional model. In half of the rows that are masked evenly, earlier answers are so, too. An
    answer weighs with its length to the power of 1 - `short_first`."""
    batch, length = rows.ids.shape
    device = rows.ids.device
    position = torch.arange(length, device=device)[None]
    levels = _spread(batch, device)
    noise = torch.rand((batch, length), device=device) < levels
    start = rows.prompt + (torch.rand((batch, 1), device=device) * rows.answer).long()
    end = start + LEAST_WINDOW * 2 ** torch.randint(WINDOWS, (batch, 1), device=device)
    working = torch.where(position < start, False, torch.where(position < end, noise, True))
    blockwise = torch.rand((batch, 1), device=device) < BLOCKWISE
    whole = (torch.rand((batch, 1), device=device) < WHOLE) & ~blockwise
    learnt = (position >= rows.prompt) | whole
    if rows.earlier is not None:
        learnt |= rows.earlier & ~blockwise & (torch.rand((batch, 1), device=device) < EARLIER)
    noise = torch.where(blockwise, working, noise) & learnt
    room = (length - rows.prompt).clamp_min(1)
    divisor = torch.where(blockwise, noise.sum(1, keepdim=True) / room, levels).clamp_min(LEAST_DIVISOR)
    weights = _importance(position, rows) * noise / divisor / room.sum()
    if rows.earlier is not None:
        weights = torch.where(rows.earlier, weights / PROMPT_WEIGHT, weights)
    if short_first:
        weights = weights * (TYPICAL / rows.answer.clamp_min(1)).pow(short_first).clamp_max(MOST)
    return Seen(torch.where(noise, MARKS.mask, rows.ids), position, None, rows.ids, weights)


def copies(rows: Rows, block: int, room: int) -> Seen:
    """A draw for a block-causal model: the text, and `room` positions of it again from the answer's first block on."""
    batch, length = rows.ids.shape
    device = rows.ids.device
    clean = torch.arange(length, device=device)[None].expand(batch, -1)
    first = rows.prompt // block
    noisy = first * block + torch.arange(room, device=device)
    targets = rows.ids.gather(1, noisy.clamp_max(length - 1))
    targets = torch.where(noisy < length, targets, MARKS.end)
    within = noisy // block - first
    levels = torch.rand((batch, -(-room // block)), device=device).clamp_min(LEAST).gather(1, within)
    noise = (torch.rand((batch, room), device=device) < levels) & (noisy >= rows.prompt)
    drawn = torch.rand((batch, 1), device=device)
    lag = torch.stack([drawn >= below for below in accumulate(LAGS[:-1])]).sum(0)
    positions = torch.cat((clean, noisy), dim=1)
    weights = _importance(noisy, rows) * noise / levels.clamp_min(LEAST_DIVISOR)
    return Seen(
        ids=torch.cat((rows.ids, torch.where(noise, MARKS.mask, targets)), dim=1),
        positions=positions,
        mask=_copies_see(positions // block, length, first, lag),
        targets=targets,
        weights=weights / (noisy >= rows.prompt).sum(),
    )


def _copies_see(blocks: Tensor, length: int, first: Tensor, lag: Tensor) -> Tensor:
    """mask [B, 1, T, T]: blocks [B, T] of `length` clean tokens and noisy ones after them; first, lag [B, 1]."""
    query, key = blocks[:, :, None], blocks[:, None, :]
    from_noisy = torch.arange(blocks.shape[1], device=blocks.device) >= length
    oldest = (blocks - lag).clamp_min(first)[:, :, None]  # noisy block that a noisy query sees
    to_clean = torch.where(from_noisy[None, :, None], key < oldest, key <= query)
    to_noisy = from_noisy[None, :, None] & (key >= oldest) & (key <= query)
    return torch.where(from_noisy[None, None], to_noisy, to_clean)[:, None]


def _importance(position: Tensor, rows: Rows) -> Tensor:
    answered = torch.where(position < rows.prompt + rows.answer, 1.0, TAIL_WEIGHT)
    return torch.where(position < rows.prompt, PROMPT_WEIGHT, answered)


def _spread(count: int, device: torch.device) -> Tensor:
    """Noise levels [count, 1], evenly spread over (0, 1] in random order."""
    levels = (torch.rand(1, device=device) + torch.arange(count, device=device) / count) % 1
    order = torch.rand(count, device=device).argsort()
    return levels[order][:, None].clamp_min(LEAST)
