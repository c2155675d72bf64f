"""Biases, masks of the vocabulary, caps, temperatures and log-probabilities in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..common.types import Prediction

PART = 1 << 14  # tokens that are compared at once: all of them would need a byte for each logit


def adjust(
    logits: Tensor, begins: Tensor, ends: Tensor, entry_starts: Tensor, ids: Tensor, deltas: Tensor, factors: Tensor
) -> None:
    """Add `deltas` to logits [N, V], in place: bias b to its tokens at its positions, in float32, then rounded. Logits
    above 0 are divided by `factors` before that, others multiplied.

    begins, ends [B] int32: positions `[begins[b], ends[b])` of bias b, which no other bias has; entry_starts [B + 1]
    int32: its entries among ids [E] int32, each once in a bias, deltas [E] float32, where minus infinity bans, and
    factors [E] float32 above 0. Biases may be empty, as padding is.
    """
    bounds = entry_starts.tolist()
    for bias, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        entries = slice(bounds[bias], bounds[bias + 1])
        columns, factor = ids[entries].long(), factors[entries]
        found = logits[begin:end, columns].float()
        found = torch.where(found > 0, found / factor, found * factor)
        logits[begin:end, columns] = (found + deltas[entries]).to(logits.dtype)


def restrict(logits: Tensor, places: Tensor, words: Tensor) -> None:
    """Set the logits [N, V] of tokens that are not allowed to minus infinity, in place.

    places [R] int32: a row of logits each, below 0: none; words [R, W] int32: token t is allowed at places[r] if bit
    t % 32 of words[r, t // 32] is set. W * 32 is V at least.
    """
    tokens = torch.arange(logits.shape[1], device=logits.device)
    for place, mask in zip(places.tolist(), words, strict=True):
        if place >= 0:
            allowed = mask[tokens // 32] >> (tokens % 32) & 1
            logits[place].masked_fill_(allowed == 0, float("-inf"))


def soft_cap(logits: Tensor, cap: float) -> Tensor:
    """cap * tanh(logits / cap), in float32, of logits [N, V] (Gemma 2, arXiv 2408.00118)."""
    return logits.to(torch.float32, copy=True).div_(cap).tanh_().mul_(cap)


def temper(logits: Tensor, temperatures: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Divide logits [N, V] float32 by temperatures [N] float32, in place, where these are above 0. Returns the softmax
    [N, V] of the quotients, which are rounded to `dtype` before it, in `dtype`; and the likeliest tokens [N] int64."""
    logits.div_(torch.where(temperatures > 0, temperatures, 1.0)[:, None])
    return logits.to(dtype).softmax(-1, dtype=torch.float32).to(dtype), logits.argmax(-1)


def rank(
    logits: Tensor, banned: Tensor, found: Prediction, count: int, scored: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Log-probabilities at temperature 1: of the token that may commit [N] float32, or of that of `scored` [N] int64
    where it is not below 0; then the `count` likeliest tokens [N, count] int64 of each position, in falling order, and
    their log-probabilities [N, count] float32; and with `scored` the rank of each of its tokens [N] int64, from 1 on.

    logits [N, V] as `predict` read them for `found`, overwritten at the ids `banned` [any] int64. In torch on every
    device.
    """
    chosen, places = found.commit_probability.log().float(), None
    best = logits.index_fill_(-1, banned, float("-inf")).topk(count, dim=-1)
    # The proposal's probability is known, so one difference of logits gives that of any other token.
    known = logits.gather(-1, found.proposals[:, None]).double() - found.confidence.log()[:, None]
    if scored is not None:
        own = logits.gather(-1, scored.clamp_min(0)[:, None])
        chosen = torch.where(scored < 0, chosen, (own.double() - known).float()[:, 0])
        likelier = [(part > own).sum(-1) for part in torch.split(logits, PART, -1)]
        places = 1 + torch.stack(likelier).sum(0)
    return chosen, best.indices, (best.values.double() - known).float(), places
