"""Predictions in torch: the best or the drawn token of each position, and its probability."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..common.noise import token_noise
from ..common.types import Draws, Prediction

COLDEST = 1e-20  # a temperature that float32 can divide by


def predict(
    logits: Tensor,
    banned: Tensor,
    end_ids: Tensor,
    endless: Tensor,
    draws: Draws | None = None,
    narrowed: bool = True,
    fixed: bool = False,
) -> Prediction:
    """The prediction for the positions of logits [N, V], which may be overwritten.

    banned [any] int64: ids that are never proposed; end_ids [any] int64; endless [N] bool: there, `tokens` holds no end
    id. draws None: no position is sampled. `narrowed` False promises that no position has top_k or top_p; `fixed`: a
    position's bits do not depend on the number of positions. Both matter on a GPU only.
    """
    proposals, confidence = propose(logits, banned)
    best = logits.amax(-1)
    if draws is not None:
        where = (draws.temperature > 0).nonzero()[:, 0]
        if len(where):
            sampled = Draws(*(param[where] for param in draws))
            proposals[where], confidence[where] = sample(logits[where], sampled)
    tokens, commit_probability = replace_ends(logits, proposals, confidence, endless, end_ids)
    second = logits.topk(2, dim=-1).values[:, 1]
    margin = (1 - (second.double() - best.double()).exp()) / _weight(logits, best)
    shares = logits.float().log_softmax(-1)
    entropy = -(shares.exp() * shares.clamp_min(torch.finfo(torch.float32).min)).sum(-1)
    return Prediction(proposals, confidence, tokens, commit_probability, margin, entropy)


def propose(logits: Tensor, banned: Tensor) -> tuple[Tensor, Tensor]:
    """The best token of each position and its probability: ([N] int64, [N] float64).

    logits [N, V], overwritten at the ids `banned` [any] int64. The probability is 1 / (1 + the others' weight),
    whose float32 sum keeps near-certain positions apart where a float32 softmax would round them all to 1.
    """
    logits[:, banned] = float("-inf")
    best, tokens = logits.max(dim=-1)
    return tokens, _probability(logits, best, best)


def _probability(logits: Tensor, best: Tensor, chosen: Tensor) -> Tensor:
    """Softmax probability [N] float64 of the entries `chosen` [N] of logits [N, V], whose maxima are `best` [N]."""
    return (chosen.double() - best.double()).exp() / _weight(logits, best)


def _weight(logits: Tensor, best: Tensor) -> Tensor:
    """The weight of all entries together, where the best weighs 1: [N] float64."""
    weights = (logits.float() - best.float()[:, None]).exp()
    weights.masked_fill_(logits == best[:, None], 0.0)
    ties = (logits == best[:, None]).sum(-1)
    return ties.double() + weights.sum(-1).double()


def replace_ends(
    logits: Tensor, tokens: Tensor, confidence: Tensor, endless: Tensor, end_ids: Tensor
) -> tuple[Tensor, Tensor]:
    """`tokens` and their `confidence`; where an end token is proposed at an `endless` position, the best other token
    with its own probability: ([N] int64, [N] float64).

    logits [N, V]; tokens [N] int64; confidence [N] float64; endless [N] bool; end_ids [any] int64.
    """
    where = (endless & torch.isin(tokens, end_ids)).nonzero()[:, 0]
    if not len(where):
        return tokens, confidence
    rows = logits[where]
    best, others = rows.amax(-1), rows.index_fill(-1, end_ids, float("-inf")).max(dim=-1)
    return (
        tokens.index_copy(0, where, others.indices),
        confidence.index_copy(0, where, _probability(rows, best, others.values)),
    )


def sample(logits: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """A token drawn at each position, and its probability at temperature 1: ([N] int64, [N] float64).

    logits [N, V] with banned ids at -inf; temperatures above 0. Gumbel noise (Gumbel, 1954) comes from a counter, so a
    draw depends on (seed, position, step) alone. top_p keeps the smallest set of tokens with this probability (Holtzman
    et al., 2019), min_p the tokens at least so likely against the best (Nguyen et al., 2024); `Draws` says how they
    nest.
    """
    best = logits.float().amax(-1, keepdim=True)
    # From the best downwards: however small the temperature, the best is 0 and none becomes inf or NaN.
    scaled = (logits.float() - best) / draws.temperature.clamp_min(COLDEST)[:, None]
    scaled = scaled.masked_fill(scaled < draws.min_p.log()[:, None], float("-inf"))
    scaled = _keep(scaled, draws.top_k > 0, lambda ordered, where: draws.top_k[where].long())
    scaled = _keep(scaled, draws.top_p < 1, lambda ordered, where: _nucleus(ordered, draws.top_p[where]))
    tokens = (scaled + token_noise(draws, logits.shape[-1])).argmax(-1)
    chosen = logits.gather(-1, tokens[:, None])[:, 0]
    return tokens, _probability(logits, best[:, 0], chosen)


def _keep(scaled: Tensor, filtered: Tensor, count: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Keep the `count` best of each `filtered` row, and those as good as the last of them."""
    where = filtered.nonzero()[:, 0]
    if not len(where):
        return scaled
    rows = scaled[where]
    ordered = rows.sort(dim=-1, descending=True).values
    last = ordered.gather(-1, count(ordered, where).clamp(1, rows.shape[-1])[:, None] - 1)
    return scaled.index_copy(0, where, rows.masked_fill(rows < last, float("-inf")))


def _nucleus(ordered: Tensor, top_p: Tensor) -> Tensor:
    mass = ordered.softmax(-1)
    return (mass.cumsum(-1) - mass < top_p[:, None]).sum(-1)
