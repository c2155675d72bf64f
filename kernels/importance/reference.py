"""Importance in torch, row by row, so that it does not depend on the other rows."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.types import Fp8Heads, PagedHeads

WIDTH = 3  # candidates side by side of which each gets the highest score


def importance(
    queries: Tensor, keys: PagedHeads, places: Tensor, candidates: Tensor, starts: Tensor, most: int
) -> Tensor:
    """Attention that each candidate gets from those of its row, summed over these and all heads: [C] float32.

    queries [T, H, D]; keys [pages, page_size, G, D], in the type of queries or `Fp8Heads`; places [T] int64, as
    `kv_places` makes them; candidates [C] int64, tokens of which row r has those from `starts[r]` to `starts[r + 1]`,
    `most` of them or fewer; starts [R + 1] int32. Before the softmax over a row's candidates each score becomes the
    highest of its own and those of the candidates beside it in the list. Numbers after the last row's are undefined.
    """
    found = torch.zeros(len(candidates), dtype=torch.float32, device=queries.device)
    groups = queries.shape[1] // keys.shape[2]
    for start, end in pairwise(starts.tolist()):
        if start == end:
            continue
        own = candidates[start:end]
        q = queries[own].float().transpose(0, 1)
        k = _read(keys, places[own], queries.dtype).float().transpose(0, 1).repeat_interleave(groups, dim=0)
        scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
        pooled = F.max_pool1d(scores, WIDTH, stride=1, padding=WIDTH // 2)
        found[start:end] = pooled.softmax(-1).sum((0, 1))
    return found


def _read(keys: PagedHeads, places: Tensor, dtype: torch.dtype) -> Tensor:
    """Keys at these places [n]: [n, G, D]."""
    page_size = keys.shape[1]
    page, offset = places // page_size, places % page_size
    if isinstance(keys, Fp8Heads):
        return (keys.numbers[page, offset].float() * keys.scales[page, :, offset][..., None]).to(dtype)
    return keys[page, offset]
