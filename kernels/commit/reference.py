"""Commits in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..common.types import SpanRules


def write_tokens(canvases: Tensor, slots: Tensor, positions: Tensor, tokens: Tensor) -> None:
    """Write `tokens` to the canvases at (slots, positions), except those below 0.

    canvases [slots, length] int64; slots, positions [T] int64; tokens [T] int32.
    """
    written = (tokens >= 0).nonzero()[:, 0]
    canvases[slots[written], positions[written]] = tokens[written].long()


def transfer(confidence: Tensor, open_: Tensor, rules: SpanRules) -> Tensor:
    """The open positions that commit: [N] bool. The rule is `scheduler.contract.DeviceCommitRule`; ties go to the left.

    confidence [N] float64, finite; open_ [N] bool. On a GPU padding after the last span does not commit. Negative
    entropies as confidence, with a budget, are the entropy-bounded choice of arXiv 2505.24857.
    """
    starts, sizes = rules.starts[:-1].long(), rules.starts.diff().long()
    column = torch.arange(int(sizes.max()), device=confidence.device)
    inside = column < sizes[:, None]
    flat = (starts[:, None] + column).clamp_(max=len(confidence) - 1)
    eligible = inside & open_[flat]
    scores = confidence[flat].masked_fill_(~eligible, float("-inf"))
    ordered, order = scores.sort(dim=1, descending=True, stable=True)
    rank = column + 1
    count = eligible.sum(1, keepdim=True)
    passes = ordered >= rules.threshold[:, None] - rules.factor[:, None] / (rank + 1)
    if rules.budget is not None and rules.inclusive is not None:
        better = -ordered.cumsum(1) + ordered.masked_fill(rules.inclusive[:, None], 0.0)
        passes &= better <= rules.budget[:, None]
    passes |= rank <= rules.sure[:, None]
    passes |= (rank == count) & rules.last_free[:, None]
    chosen = passes.cumprod(1).bool() & (rank <= count)
    commit = torch.zeros_like(eligible).scatter_(1, order, chosen)
    return commit[inside]


def commit(
    canvases: Tensor,
    slots: Tensor,
    positions: Tensor,
    tokens: Tensor,
    confidence: Tensor,
    mask_id: int,
    rules: SpanRules,
) -> Tensor:
    """Write `tokens` where masks commit by `transfer`; return the tokens of the canvases afterwards: [N] int64.

    canvases [slots, length] int64; slots, positions, tokens [N] int64; confidence [N] float64, finite.
    On a GPU the result of padding is undefined.
    """
    current = canvases[slots, positions]
    chosen = transfer(confidence, current == mask_id, rules)
    current = torch.where(chosen, tokens, current)
    canvases[slots, positions] = current
    return current
