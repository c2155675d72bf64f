"""A mixture of experts in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..common.types import Fp8Matrix, GroupedMatrix, Matrix, Routing
from ..elementwise.reference import geglu, swiglu, weighted_sum
from ..linear.reference import linear

LEAST_SUM = 1e-20  # added to the sum that weights are divided by


def route(logits: Tensor, bias: Tensor | None, routing: Routing, scales: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Numbers of the chosen experts [T, K] int32, best first, and their weights [T, K] float32.

    logits [T, E] float32; bias [E] float32 is added to scores where experts are chosen, not in their weights
    (Wang et al., arXiv 2408.15664; groups as in DeepSeek-V3, arXiv 2412.19437). scales [E] float32 multiply the
    weights of their experts at last (transformers 5.24, models/diffusion_gemma).
    """
    # torch's float32 sigmoid has other last bits where a vector ends: a token's would follow the number of tokens.
    scores = logits.double().sigmoid().float() if routing.sigmoid else logits.softmax(-1)
    ranked = scores if bias is None else scores + bias
    if routing.groups > 1:
        grouped = ranked.view(len(ranked), routing.groups, -1)
        live = _best(grouped.topk(2, dim=-1).values.sum(-1), routing.live_groups)
        dead = torch.ones(grouped.shape[:2], dtype=torch.bool, device=logits.device).scatter_(1, live, False)
        ranked = grouped.masked_fill(dead[:, :, None], float("-inf")).flatten(1)
    chosen = _best(ranked, routing.chosen)
    weights = scores.gather(1, chosen)
    if routing.normed:
        weights = weights / (weights.sum(-1, keepdim=True) + LEAST_SUM)
    weights = weights * routing.scale
    return chosen.int(), weights if scales is None else weights * scales[chosen]


def _best(scores: Tensor, count: int) -> Tensor:
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def experts_mlp(
    x: Tensor, gate_up: Matrix, down: Matrix, chosen: Tensor, weights: Tensor, fixed: bool = False, gelu: bool = False
) -> Tensor:
    """The weighted sum [T, dim] of `experts_parts`, added up in float32 in the order of choice; weights [T, K]
    float32."""
    return weighted_sum(experts_parts(x, gate_up, down, chosen, fixed, gelu), weights)


def experts_parts(
    x: Tensor, gate_up: Matrix, down: Matrix, chosen: Tensor, fixed: bool = False, gelu: bool = False
) -> Tensor:
    """The outputs [T, K, dim] of the chosen experts' SwiGLU MLPs, or with `gelu` GEGLU ones.

    x [T, dim]; gate_up [E * 2 * F, dim], of each expert first the gate; down [E * dim, F]; chosen [T, K] int32.
    `fixed`: a token's bits do not depend on the other tokens. FP8 weights are multiplied with rows that are quantized
    one by one, as `linear` does.
    """
    tokens, choices = chosen.shape
    dim, inner = x.shape[1], down.shape[1]
    pairs = chosen.flatten()
    out = x.new_empty((len(pairs), dim))
    for expert in torch.bincount(pairs).nonzero()[:, 0].tolist():
        where = (pairs == expert).nonzero()[:, 0]
        both = _product(x[where // choices], gate_up, slice(expert * 2 * inner, (expert + 1) * 2 * inner), fixed)
        inside = geglu(both) if gelu else swiglu(both)
        out[where] = _product(inside, down, slice(expert * dim, (expert + 1) * dim), fixed)
    return out.view(tokens, choices, dim)


def _product(x: Tensor, weight: Matrix, rows: slice, fixed: bool) -> Tensor:
    if isinstance(weight, Fp8Matrix):
        return linear(x, Fp8Matrix(weight.values[rows], weight.scales[rows]))
    if isinstance(weight, GroupedMatrix):
        return linear(x, GroupedMatrix(weight.values[rows], weight.scales[rows], weight.group), fixed)
    return linear(x, weight[rows], fixed)
