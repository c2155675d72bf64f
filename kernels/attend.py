"""Attention of one row in torch, in an order of sums that does not depend on where the row starts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .linear import MIN_ROWS

# torch takes queries in blocks of some multiple of these many, and sums a last block of one or two otherwise.
BLOCK_ROWS = 32
FEW_ROWS = 2


def attend(q: Tensor, k: Tensor, v: Tensor, unseen: Tensor | None = None) -> Tensor:
    """q [H, queries, D] attends to k, v [G, keys, D]: [queries, H, D]. `unseen` [queries] int64: the key that each
    query does not see.

    The last queries of a row of `keys` positions have the same bits in a row that starts a page or more later: both
    are cut where the longer one would be.
    """
    queries, keys = q.shape[1], k.shape[1]
    few = keys % BLOCK_ROWS if keys % BLOCK_ROWS <= FEW_ROWS else 0
    cut = max(queries - few, 0)
    parts = [slice(start, end) for start, end in ((0, cut), (cut, queries)) if start < end]
    out = [_attend(q[:, part], k, v, None if unseen is None else unseen[part]) for part in parts]
    return (out[0] if len(out) == 1 else torch.cat(out, dim=1)).transpose(0, 1)


def _attend(q: Tensor, k: Tensor, v: Tensor, unseen: Tensor | None) -> Tensor:
    """As `attend`, but [H, queries, D]: whole blocks but for a few queries."""
    queries = q.shape[1]
    if queries > FEW_ROWS:
        spare = -queries % MIN_ROWS
        q = F.pad(q, (0, 0, 0, spare))
    grouped = q.shape[0] != k.shape[0]
    seen = None
    if unseen is not None:
        seen = torch.ones((q.shape[1], k.shape[1]), dtype=torch.bool, device=q.device)
        seen[:queries].scatter_(1, unseen[:, None], value=False)
    return F.scaled_dot_product_attention(q[None], k[None], v[None], seen, enable_gqa=grouped)[0, :, :queries]
